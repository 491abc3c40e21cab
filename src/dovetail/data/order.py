"""In which order samples are seen: a function of (seed, epoch), so that everyone can work out any part of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail.data.errors import DataError
from dovetail.data.streams import stream_number

BLOCK_SAMPLES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStretch:
    """Consecutive positions of an order whose samples lie in one block of the data."""

    first_sample: int
    last_sample: int
    """The block, which is read at once; exclusive."""
    picks: NDArray[np.int64]
    """The samples at these positions, counted from `first_sample`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Every sample exactly once: blocks of neighbours in random order, and each block shuffled within.

    Data without an end keep the order of their blocks; without `shuffle` the order is that of the data.
    """

    num_samples: int | None
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    block_samples: int = BLOCK_SAMPLES

    def __post_init__(self) -> None:
        """Refuse an order of nothing."""
        if (self.num_samples is not None and self.num_samples < 1) or self.block_samples < 1:
            raise DataError(
                f"an order of {self.num_samples} samples in blocks of {self.block_samples}", hint="both are at least 1"
            )

    def stretches(self, first: int, last: int) -> list[OrderStretch]:
        """Return what lies at positions `first` up to but not including `last`, in that order."""
        if self.num_samples is not None:
            last = min(last, self.num_samples)
        found = []
        position = first
        while position < last:
            begin, number = self._block_at(position)
            first_sample = number * self.block_samples
            last_sample = first_sample + self.block_samples
            if self.num_samples is not None:
                last_sample = min(last_sample, self.num_samples)
            end = min(last, begin + last_sample - first_sample)
            inside = np.arange(position - begin, end - begin)
            picks = self._shuffled(number, last_sample - first_sample)[inside] if self.shuffle else inside
            found.append(OrderStretch(first_sample=first_sample, last_sample=last_sample, picks=picks))
            position = end
        return found

    def sample_ids(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples at positions `first` up to but not including `last`."""
        parts = [stretch.first_sample + stretch.picks for stretch in self.stretches(first, last)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _block_at(self, position: int) -> tuple[int, int]:
        """Return where the block that holds a position begins in the order, and which block of the data it is."""
        turn = position // self.block_samples
        if self.num_samples is None or not self.shuffle:
            return turn * self.block_samples, turn
        blocks = _block_order(self.num_samples, self.block_samples, self.seed, self.epoch)
        short_turn = int(np.flatnonzero(blocks == len(blocks) - 1)[0])
        missing = len(blocks) * self.block_samples - self.num_samples  # what the last block of the data lacks
        if turn < short_turn:
            return turn * self.block_samples, int(blocks[turn])
        if position < (short_turn + 1) * self.block_samples - missing:
            return short_turn * self.block_samples, int(blocks[short_turn])
        turn = (position + missing) // self.block_samples
        return turn * self.block_samples - missing, int(blocks[turn])

    def _shuffled(self, block: int, size: int) -> NDArray[np.int64]:
        """Return the order within a block."""
        return _permutation(stream_number(self.seed, f"order/{self.epoch}/{block}"), size)


@lru_cache(maxsize=4)
def _block_order(num_samples: int, block_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the blocks."""
    return _permutation(stream_number(seed, f"blocks/{epoch}"), -(-num_samples // block_samples))


@lru_cache(maxsize=8)
def _permutation(stream: int, size: int) -> NDArray[np.int64]:
    """Return the numbers below `size` in the random order of a stream."""
    order = np.random.Generator(np.random.Philox(stream)).permutation(size).astype(np.int64)
    order.setflags(write=False)
    return order
