"""Which row is which: from any int64 keys to the numbers 0, 1, 2, ... in the order in which they came."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.splitmix import mix

Keys = NDArray[np.int64]
Slots = NDArray[np.int32]
FIRST_ROOM = 1024


class KeyIndex:
    """A number for every key; keys leave when only some are kept."""

    def __init__(self) -> None:
        """Start without keys."""
        self.count = 0
        self._keys = np.empty(FIRST_ROOM, dtype=np.int64)
        self._heads = np.full(4 * FIRST_ROOM, -1, dtype=np.int32)

    @property
    def keys(self) -> Keys:
        """Return the keys by their numbers."""
        return self._keys[: self.count]

    def find(self, keys: Keys) -> Slots:
        """Return the number of each key, -1 where it has none."""
        slots = np.empty(len(keys), dtype=np.int32)
        find_all(keys, self._heads, self._keys, slots)
        return slots

    def add(self, keys: Keys) -> Slots:
        """Return the number of each of some distinct keys; those without one get the next."""
        if self.count + len(keys) > len(self._keys):
            self._make_room(self.count + len(keys))
        slots = np.empty(len(keys), dtype=np.int32)
        self.count = add_all(keys, self._heads, self._keys, self.count, slots)
        return slots

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Keep some keys, in their order, and forget the others."""
        keys = self.keys[kept]
        self.count = 0
        self._keys = np.empty(FIRST_ROOM, dtype=np.int64)
        self._heads = np.full(4 * FIRST_ROOM, -1, dtype=np.int32)
        self.add(keys)

    def _make_room(self, wanted: int) -> None:
        """Have room for so many keys."""
        keys = self.keys
        size = 1 << (wanted - 1).bit_length()
        self._keys = np.empty(size, dtype=np.int64)
        self._heads = np.full(4 * size, -1, dtype=np.int32)
        self.count = add_all(keys, self._heads, self._keys, 0, np.empty(len(keys), dtype=np.int32))


@njit(cache=True, nogil=True)
def find_all(keys, heads, known, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the number of each key, or -1."""
    mask = len(heads) - 1
    for i in range(len(keys)):
        at = np.int64(mix(np.uint64(keys[i])) & np.uint64(mask))
        while heads[at] >= 0 and known[heads[at]] != keys[i]:
            at = (at + 1) & mask
        slots[i] = heads[at]


@njit(cache=True, nogil=True)
def add_all(keys, heads, known, count, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the number of each key, new ones included; return how many there are then."""
    mask = len(heads) - 1
    for i in range(len(keys)):
        at = np.int64(mix(np.uint64(keys[i])) & np.uint64(mask))
        while heads[at] >= 0 and known[heads[at]] != keys[i]:
            at = (at + 1) & mask
        if heads[at] < 0:
            heads[at] = count
            known[count] = keys[i]
            count += 1
        slots[i] = heads[at]
    return count
