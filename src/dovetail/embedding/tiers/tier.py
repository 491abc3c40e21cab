"""What every tier can do, whatever it is made of: keep rows at numbered places, and hand them over in host memory."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MOST_AT_ONCE = 4096
"""Rows moved between tiers, into a checkpoint or out of one in one go: what bounds buffers and waiting for the lock."""


class MetadataAbove(NamedTuple):
    """What a tier that knows its rows itself says of some: one number a row each."""

    keys: NDArray[np.int64]
    numbers: NDArray[np.int32]
    seen: NDArray[np.int32]
    counts: NDArray[np.int32]
    states: NDArray[np.int32]

    @property
    def columns(self) -> NDArray[np.int32]:
        """Return last step seen, count and state side by side."""
        return np.stack([self.seen, self.counts, self.states], axis=1)


class Tier(Protocol):
    """Whole rows, values and optimizer state, at numbers that the tier gives out; whose they are, the index knows.

    A tier has a budget of its own. Rows come and go through arrays in host memory: row i is `rows[at[i]]`, so that two
    tiers exchange rows without a copy between them.
    """

    @property
    def num_rows(self) -> int:
        """Return how many rows there are."""
        ...

    @property
    def used_bytes(self) -> int:
        """Return the bytes the rows take where the tier keeps them."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Return the RAM of the host that the tier takes, lists included."""
        ...

    def write_from(
        self, keys: NDArray[np.int64], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Keep rows, and return the number of each; where that fails, nothing counts as written."""
        ...

    def read_into(
        self, keys: NDArray[np.int64], numbers: NDArray[np.int32], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> None:
        """Copy the rows at `numbers`, which belong to `keys`, to `rows`."""
        ...

    def release(self, numbers: NDArray[np.int32]) -> None:
        """Give numbers back."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class TierAbove(Tier, Protocol):
    """A tier that knows its rows itself: what is known of them in the index may be out of date."""

    @property
    def capacity(self) -> int:
        """Return how many rows there is room for."""
        ...

    def metadata_at(self, numbers: NDArray[np.int32]) -> MetadataAbove:
        """Return what is known of the rows at `numbers`."""
        ...

    def taken(self) -> NDArray[np.int32]:
        """Return the numbers of all rows."""
        ...

    def mark_saved(self, numbers: NDArray[np.int32]) -> None:
        """Say that rows are as in the last checkpoint."""
        ...

    def age(self) -> None:
        """Halve all access counts."""
        ...


class SlottedTier:
    """The slots of a tier: those given back go out first, the last one first, then the next above all used."""

    def __init__(self, capacity: int, free: NDArray[np.int32]) -> None:
        """Have `capacity` slots; `free` is memory for the numbers of as many."""
        self.capacity, self._free = capacity, free
        self._num_free = self.top = 0

    @property
    def num_rows(self) -> int:
        """Return how many slots are taken."""
        return self.top - self._num_free

    @property
    def num_free(self) -> int:
        """Return how many rows can still be taken in."""
        return self.capacity - self.num_rows

    def take(self, num_rows: int) -> NDArray[np.int32]:
        """Return free slots."""
        slots = np.empty(num_rows, dtype=np.int32)
        reused = min(num_rows, self._num_free)
        self._num_free -= reused
        slots[:reused] = self._free[self._num_free : self._num_free + reused]
        slots[reused:] = np.arange(self.top, self.top + num_rows - reused)
        self.top += num_rows - reused
        return slots

    def give_back(self, slots: NDArray[np.int32]) -> None:
        """Take slots back that nobody has."""
        self._free[self._num_free : self._num_free + len(slots)] = slots
        self._num_free += len(slots)
