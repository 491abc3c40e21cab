"""The keys of a micro-batch: each once, grouped by the server that owns it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.hashing import owners
from dovetail.embedding.key_numbers import number_keys

Keys = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LookUp:
    """Distinct keys of one look-up in a table, those of server s at `bounds[s]` up to `bounds[s + 1]`.

    `keys[places]` are the keys in the order in which they were asked for.
    """

    table: int
    asked: Keys
    keys: Keys
    places: NDArray[np.int32]
    bounds: tuple[int, ...]
    pull: int = -1
    """The number of the pull that asked for it, by which servers know its keys; -1: they do not."""
    place: int = 0
    """Among the look-ups of that pull."""

    def of_server(self, server: int) -> slice:
        """Return where the keys of a server lie."""
        return slice(self.bounds[server], self.bounds[server + 1])


def look_up(table: int, asked: Keys, num_servers: int) -> LookUp:
    """Return the look-up of `asked`, which may hold keys several times."""
    size = 1 << max(4, int(2 * len(asked)).bit_length())
    keys = np.empty(len(asked), dtype=np.int64)
    places = np.empty(len(asked), dtype=np.int32)
    count = number_keys(asked, np.full(size, -1, dtype=np.int32), keys, 0, places)
    keys = keys[:count]
    if num_servers == 1:
        return LookUp(table, asked, keys, places, (0, count))
    owner = np.empty(count, dtype=np.int64)
    owners(keys, num_servers, owner)
    grouped = np.empty(count, dtype=np.int64)
    bounds = np.zeros(num_servers + 1, dtype=np.int64)
    group(keys, owner, grouped, np.empty(count, dtype=np.int32), bounds, places)
    return LookUp(table, asked, grouped, places, tuple(bounds.tolist()))


@njit(cache=True, nogil=True)
def group(keys, owner, grouped, place_of, bounds, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write keys by owner, each owner's in their order, with where each owner's begin; bend `places` accordingly."""
    num_owners = len(bounds) - 1
    for i in range(len(keys)):
        bounds[owner[i] + 1] += 1
    for each in range(num_owners):
        bounds[each + 1] += bounds[each]
    next_place = bounds[:num_owners].copy()
    for i in range(len(keys)):
        place = next_place[owner[i]]
        next_place[owner[i]] += 1
        grouped[place] = keys[i]
        place_of[i] = place
    for i in range(len(places)):
        places[i] = place_of[places[i]]


def keys_within(ids: Keys, num_rows: int) -> Keys:
    """Return ids as the keys of a table of so many rows: those beyond them begin anew."""
    keys = np.empty(len(ids), dtype=np.int64)
    fold(ids, num_rows, keys)
    return keys


@njit(cache=True, nogil=True)
def fold(ids, num_rows, keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the remainders of ids, most of which are below `num_rows` already: a division takes long."""
    for i in range(len(ids)):
        key = ids[i]
        keys[i] = key if 0 <= key < num_rows else key % num_rows


@njit(cache=True, nogil=True)
def is_one_each(offsets):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Say whether each bag is one key."""
    others = 0
    for i in range(len(offsets) - 1):
        others += offsets[i + 1] != offsets[i] + 1
    return others == 0
