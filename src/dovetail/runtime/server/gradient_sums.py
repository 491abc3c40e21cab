"""Gradients of the rows of one table, summed by key as they arrive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding import Whereabouts
from dovetail.splitmix import mix

Keys = NDArray[np.int64]
Floats = NDArray[np.float32]
FIRST_ROWS = 1024
NO_SLOTS = np.empty(0, dtype=np.int32)


class Taken(NamedTuple):
    """Sums that are to be applied, which whoever takes them may change, and where the table has their rows."""

    keys: Keys
    values: Floats
    where: Whereabouts | None


class GradientSums:
    """One sum a key; which of them were taken already."""

    def __init__(self, width: int) -> None:
        """Start without keys."""
        self._width = width
        self.count = 0
        self.keys = np.empty(FIRST_ROWS, dtype=np.int64)
        self.sums = np.empty((FIRST_ROWS, width), dtype=np.float32)
        self.taken = np.zeros(FIRST_ROWS, dtype=np.bool_)
        self._slots = np.empty(FIRST_ROWS, dtype=np.int32)
        self._as_of: tuple[int, int] | None = None
        """When the rows of all sums were where `_slots` says; None: there are sums of which nobody knows that."""
        self._heads = np.full(4 * FIRST_ROWS, -1, dtype=np.int32)
        self._cursor = 0

    def add(self, keys: Keys, values: Floats, where: Whereabouts | None = None) -> None:
        """Add gradients to the sums of their keys; `where` says where the table has the rows."""
        if not len(keys):
            return
        if self.count + len(keys) > len(self.keys):
            self._grow(self.count + len(keys))
        as_of = None if where is None else where.as_of
        self._as_of = as_of if not self.count or self._as_of == as_of else None
        slots = NO_SLOTS if where is None else where.slots
        self.count = add_rows(keys, values, slots, self._heads, self.keys, self.sums, self._slots, self.count)

    def take(self, keys: Keys) -> Taken:
        """Return those of `keys`, which are distinct, whose sums were not taken yet, with their sums; take them."""
        places = np.empty(len(keys), dtype=np.int32)
        count = find_untaken(keys, self._heads, self.keys, self.taken, places)
        return self._at(places[:count])

    def _at(self, places: NDArray[np.int32] | slice) -> Taken:
        """Return the sums at some places."""
        if isinstance(places, slice):
            keys, sums, slots = self.keys[places], self.sums[places], self._slots[places]
        else:
            count = len(places)
            keys, slots = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32)
            sums = np.empty((count, self._width), dtype=np.float32)
            pick(places, self.keys, self.sums, self._slots, keys, sums, slots)
        return Taken(keys, sums, None if self._as_of is None else Whereabouts(slots, self._as_of))

    def changed(self, keys: Keys) -> NDArray[np.int32]:
        """Return the positions of those of `keys` that have sums, taken or not."""
        positions = np.empty(len(keys), dtype=np.int32)
        return positions[: find_known(keys, self._heads, self.keys, positions)]

    def take_changed(self, keys: Keys) -> tuple[NDArray[np.int32], Taken]:
        """Return what `changed` does, and take those of them that were not taken yet."""
        positions, places = np.empty((2, len(keys)), dtype=np.int32)
        known, untaken = find_changed(keys, self._heads, self.keys, self.taken, positions, places)
        return positions[:known], self._at(places[:untaken])

    def take_some(self, most: int) -> Taken:
        """Return up to `most` of the sums that were not taken yet; take them. None are left where none come."""
        places = np.empty(min(most, self.count - self._cursor), dtype=np.int32)
        begin = self._cursor
        count, self._cursor = next_untaken(begin, self.count, self.taken, places)
        whole = count == self._cursor - begin  # none between was taken: no copy
        return self._at(slice(begin, self._cursor) if whole else places[:count])

    def clear(self) -> None:
        """Start again without keys."""
        self.taken[: self.count] = False
        self._heads[:] = -1
        self.count = self._cursor = 0

    def _grow(self, wanted: int) -> None:
        """Make room."""
        size = 1 << (wanted - 1).bit_length()
        keys, sums = np.empty(size, dtype=np.int64), np.empty((size, self._width), dtype=np.float32)
        keys[: self.count], sums[: self.count] = self.keys[: self.count], self.sums[: self.count]
        self.keys, self.sums = keys, sums
        slots = np.empty(size, dtype=np.int32)
        slots[: self.count] = self._slots[: self.count]
        self._slots = slots
        self.taken = np.concatenate([self.taken, np.zeros(size - len(self.taken), dtype=np.bool_)])
        self._heads = np.full(4 * size, -1, dtype=np.int32)
        place_keys(self.keys, self.count, self._heads)


@njit(cache=True, nogil=True)
def add_rows(keys, values, slots, heads, known, sums, known_slots, count):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add rows to the sums of their keys, with their slots where there are any; return how many keys there are then."""
    mask = len(heads) - 1
    width = sums.shape[1]
    for i in range(len(keys)):
        key = keys[i]
        at = np.int64(mix(np.uint64(key)) & np.uint64(mask))
        while heads[at] >= 0 and known[heads[at]] != key:
            at = (at + 1) & mask
        place = heads[at]
        if place < 0:
            heads[at] = count
            known[count] = key
            if len(slots):
                known_slots[count] = slots[i]
            for j in range(width):
                sums[count, j] = values[i, j]
            count += 1
        else:
            for j in range(width):
                sums[place, j] += values[i, j]
    return count


@njit(cache=True, nogil=True)
def place_keys(known, count, heads):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Enter distinct keys into empty heads."""
    mask = len(heads) - 1
    for place in range(count):
        at = np.int64(mix(np.uint64(known[place])) & np.uint64(mask))
        while heads[at] >= 0:
            at = (at + 1) & mask
        heads[at] = place


@njit(cache=True, nogil=True, inline="always")
def place_of(key, heads, known):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where the sum of a key lies, or -1."""
    mask = len(heads) - 1
    at = np.int64(mix(np.uint64(key)) & np.uint64(mask))
    while heads[at] >= 0 and known[heads[at]] != key:
        at = (at + 1) & mask
    return heads[at]


@njit(cache=True, nogil=True)
def find_untaken(keys, heads, known, taken, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where the keys lie that were not taken yet, and take them; return how many."""
    count = 0
    for i in range(len(keys)):
        place = place_of(keys[i], heads, known)
        if place >= 0 and not taken[place]:
            taken[place] = True
            places[count] = place
            count += 1
    return count


@njit(cache=True, nogil=True)
def find_known(keys, heads, known, positions):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write which of the keys have sums; return how many."""
    count = 0
    for i in range(len(keys)):
        if place_of(keys[i], heads, known) >= 0:
            positions[count] = i
            count += 1
    return count


@njit(cache=True, nogil=True)
def find_changed(keys, heads, known, taken, positions, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write which of the keys have sums, and where those lie that were not taken yet, which are then; return both."""
    count = untaken = 0
    for i in range(len(keys)):
        place = place_of(keys[i], heads, known)
        if place >= 0:
            positions[count] = i
            count += 1
            if not taken[place]:
                taken[place] = True
                places[untaken] = place
                untaken += 1
    return count, untaken


@njit(cache=True, nogil=True)
def pick(places, known, sums, slots, picked_keys, picked_sums, picked_slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy what lies at some places."""
    width = sums.shape[1]
    for i in range(len(places)):
        place = places[i]
        picked_keys[i] = known[place]
        picked_slots[i] = slots[place]
        for j in range(width):
            picked_sums[i, j] = sums[place, j]


@njit(cache=True, nogil=True)
def next_untaken(begin, end, taken, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write places from `begin` on that were not taken, and take them; return how many, and where to go on."""
    count = 0
    place = begin
    while place < end and count < len(places):
        if not taken[place]:
            taken[place] = True
            places[count] = place
            count += 1
        place += 1
    return count, place
