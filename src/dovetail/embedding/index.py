"""Which rows there are and where each lies: an open-addressing index from any int64 key to a place.

What a place says is in `places`. Rows in the tier below carry their access count, the step they were last seen and
whether a checkpoint still has to write them in the index; rows in the host tier carry these in their slot. Deletion
closes the gap it leaves, so there are no tombstones and probes stay short.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.hashing import home_of
from dovetail.embedding.places import NOWHERE

ENTRY_BYTES = 8 + 4 + 4 + 2 + 1
"""An entry: key, place of the row, last step seen, access count, checkpoint state."""
FULLEST = 0.8
"""The index grows when more than this fraction is taken: beyond it, linear probing takes many steps for a new key."""
GROWTH = 1.5
"""Each time it gets so many times larger; the old and the new one are in memory at once while it grows."""


IndexArrays = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.uint16], NDArray[np.uint8]]


class Index:
    """The arrays of the index; kernels read and write them in place."""

    __slots__ = ("counts", "keys", "num_rows", "places", "seen", "states")

    def __init__(self, size: int) -> None:
        """Make an empty index of `size` entries; memory is taken as they are written."""
        self._make(size)
        self.num_rows = 0

    def _make(self, size: int) -> None:
        """Take memory for `size` entries, all of them free."""
        self.keys = np.zeros(size, dtype=np.int64)
        self.places = np.zeros(size, dtype=np.int32)
        self.seen = np.zeros(size, dtype=np.int32)
        self.counts = np.zeros(size, dtype=np.uint16)
        self.states = np.zeros(size, dtype=np.uint8)

    @property
    def size(self) -> int:
        """Return how many entries there is room for."""
        return len(self.keys)

    @property
    def used_bytes(self) -> int:
        """Return the memory of all entries."""
        return self.size * ENTRY_BYTES

    @property
    def arrays(self) -> IndexArrays:
        """Return keys, places, last steps seen, access counts and checkpoint states, as kernels take them."""
        return self.keys, self.places, self.seen, self.counts, self.states

    def size_for(self, num_rows: int) -> int:
        """Return the size needed for `num_rows`: the present one, or the next larger."""
        size = self.size
        while num_rows > size * FULLEST:
            size = int(size * GROWTH) + 8
        return size

    def insert(self, keys: NDArray[np.int64], places: NDArray[np.int32]) -> None:
        """Add keys that are not there yet."""
        insert_all(self.keys, self.places, keys, places)
        self.num_rows += len(keys)

    def remove(self, keys: NDArray[np.int64]) -> None:
        """Take out keys that are there."""
        remove_all(*self.arrays, keys)
        self.num_rows -= len(keys)

    def grow(self, size: int) -> None:
        """Spread the same rows over `size` entries."""
        old = self.arrays
        self._make(size)
        copy_all(*old, *self.arrays)


def size_for(num_rows: int) -> int:
    """Return the size of an index that need not grow for `num_rows`."""
    return int(num_rows / FULLEST) + 8


@njit(cache=True, nogil=True, inline="always")
def probe(index_keys, index_places, key):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the position of `key`, or -(free position) - 1."""
    size = len(index_keys)
    position = home_of(key, size)
    while index_places[position] != NOWHERE:
        if index_keys[position] == key:
            return position
        position += 1
        if position == size:
            position = 0
    return -position - 1


@njit(cache=True, nogil=True)
def insert_all(index_keys, index_places, keys, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Insert keys that are not there."""
    for i in range(len(keys)):
        position = -probe(index_keys, index_places, keys[i]) - 1
        index_keys[position] = keys[i]
        index_places[position] = places[i]


@njit(cache=True, nogil=True)
def remove_all(index_keys, index_places, seen, counts, states, keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Remove keys, moving later entries of the same run back over each gap."""
    size = len(index_keys)
    for i in range(len(keys)):
        gap = probe(index_keys, index_places, keys[i])
        if gap < 0:
            continue
        position = gap
        while True:
            position += 1
            if position == size:
                position = 0
            if index_places[position] == NOWHERE:
                break
            home = home_of(index_keys[position], size)
            # The entry may fill the gap unless its home lies behind the gap, up to where it is now.
            behind = gap < home <= position if gap < position else home > gap or home <= position
            if not behind:
                index_keys[gap], index_places[gap] = index_keys[position], index_places[position]
                seen[gap], counts[gap], states[gap] = seen[position], counts[position], states[position]
                gap = position
        index_places[gap], seen[gap], counts[gap], states[gap] = NOWHERE, 0, 0, 0


@njit(cache=True, nogil=True)
def copy_all(keys, places, seen, counts, states, to_keys, to_places, to_seen, to_counts, to_states):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Insert every entry of one index into another."""
    for i in range(len(keys)):
        if places[i] != NOWHERE:
            position = -probe(to_keys, to_places, keys[i]) - 1
            to_keys[position], to_places[position] = keys[i], places[i]
            to_seen[position], to_counts[position], to_states[position] = seen[i], counts[i], states[i]
