"""In which order samples are seen: a function of (seed, epoch), so that everyone can work out any part of it.

The order suits files, and is the same wherever samples lie, in files, in a cache or in memory: parts of the data (what
a file gives at once: a row group, some thousand lines) are drawn at random, so many make a window, and samples are
drawn over the window. Each part is then fetched and decoded once an epoch, and a window is all that has to lie in
memory. Data that fit one window are one: their blocks are drawn over all of them.

That is random enough: a batch is drawn from as many places of the data as a window has parts, which are others in every
epoch. SGD converges in such an order as in one over all samples, up to a term that falls with the number of parts of a
window (CorgiPile: Xu et al., SIGMOD 2022).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dovetail.data.errors import DataError
from dovetail.data.schema import Schema
from dovetail.data.streams import stream_number

BLOCK_SAMPLES = 65_536
PART_SAMPLES = 65_536
"""Of a part, where the data have none of their own."""
WINDOW_BYTES = 256 << 20
"""Of the samples of a window, as batches hold them: no matter which machine, as the order is the same on all."""
FEWEST_PARTS = 4
"""Of a window: samples of fewer places of the data would be too much alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStretch:
    """Consecutive positions of an order whose samples lie in one block of the data."""

    first_sample: int
    last_sample: int
    """The block, which is read at once; exclusive."""
    picks: NDArray[np.int64]
    """The samples at these positions, counted from `first_sample`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderWindow:
    """Consecutive positions of an order whose samples lie in a few parts of the data."""

    first: int
    last: int
    parts: NDArray[np.int64]
    """[parts, 2]: their first and last samples, the latter exclusive."""


@dataclass(frozen=True, slots=True)
class WindowBlocks:
    """The blocks of a window in their order."""

    begins: NDArray[np.int64]
    """Their positions, and the one after the last."""
    firsts: NDArray[np.int64]
    """Their first samples."""
    purposes: Sequence[str | int]
    """What tells the stream of each from others."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Every sample exactly once: parts in random order, blocks of a window's parts too, and each block shuffled within.

    Data without an end keep the order of their blocks; without `shuffle` the order is that of the data. Without
    `window_samples` all data are one window.
    """

    num_samples: int | None
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    block_samples: int = BLOCK_SAMPLES
    window_samples: int | None = None
    """A window has parts until it has so many samples."""
    parts: Sequence[int] | None = None
    """The first sample of each part, from 0 on; absent: parts of `PART_SAMPLES`."""

    def __post_init__(self) -> None:
        """Refuse an order of nothing."""
        sizes = (self.num_samples, self.block_samples, self.window_samples)
        if any(size is not None and size < 1 for size in sizes):
            raise DataError(
                f"an order of {self.num_samples} samples in blocks of {self.block_samples} and windows of "
                f"{self.window_samples}",
                hint="all are at least 1",
            )

    def stretches(self, first: int, last: int) -> list[OrderStretch]:
        """Return what lies at positions `first` up to but not including `last`, in that order."""
        last = self._end(last)
        found = []
        position = first
        while position < last:
            begin, end, first_sample, purpose = self._block_at(position)
            size, stop = end - begin, min(last, end)
            inside = np.arange(position - begin, stop - begin)
            picks = self._shuffled(purpose, size)[inside] if self.shuffle else inside
            found.append(OrderStretch(first_sample=first_sample, last_sample=first_sample + size, picks=picks))
            position = stop
        return found

    def sample_ids(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples at positions `first` up to but not including `last`."""
        last = self._end(last)
        if not self.shuffle or last <= first:
            return np.arange(first, max(first, last))
        places = np.empty(last - first, dtype=np.int64)
        position = first
        while position < last:
            position = self._fill(position, last, places[position - first :])
        return places

    def _fill(self, position: int, last: int, places: NDArray[np.int64]) -> int:
        """Put samples from a position on, of one window, into `places`; return the position after them."""
        from dovetail.data.shuffling import shuffle_blocks  # noqa: PLC0415 - compiles, and only who shuffles needs it

        begin, end, first_sample, purpose = self._block_at(position)
        if position > begin or end > last:  # a block in pieces, which are asked for one after the other
            stop = min(end, last)
            picks = self._shuffled(purpose, end - begin)[position - begin : stop - begin]
            np.add(picks, first_sample, out=places[: stop - position])
            return stop
        blocks = self._blocks_from(position, last)
        streams = np.array([self._stream(purpose) for purpose in blocks.purposes], dtype=np.uint64)
        stop = int(blocks.begins[-1])
        shuffle_blocks(streams, blocks.firsts, np.diff(blocks.begins), 0, places[: stop - position])
        return stop

    def _blocks_from(self, position: int, last: int) -> WindowBlocks:
        """Return the whole blocks from a position, where one begins, up to `last`, as far as its window goes."""
        if self.num_samples is None:
            turns = np.arange(position // self.block_samples, last // self.block_samples)
            begins = np.append(turns, last // self.block_samples) * self.block_samples
            return WindowBlocks(begins, turns * self.block_samples, turns.tolist())
        blocks = self._blocks(self.window_at(position))
        here = int(np.searchsorted(blocks.begins, position))
        there = int(np.searchsorted(blocks.begins, last, side="right")) - 1
        return WindowBlocks(blocks.begins[here : there + 1], blocks.firsts[here:there], blocks.purposes[here:there])

    @cached_property
    def windows(self) -> tuple[OrderWindow, ...]:
        """The windows in their order; none where data have no end, or are not shuffled."""
        if self.num_samples is None or not self.shuffle:
            return ()
        starts = self._part_starts
        bounds = np.stack([starts, np.append(starts[1:], self.num_samples)], axis=1)
        if self.window_samples is None or self.num_samples <= self.window_samples or len(starts) <= FEWEST_PARTS:
            return (OrderWindow(first=0, last=self.num_samples, parts=bounds),)
        bounds = bounds[_permutation(stream_number(self.seed, f"parts/{self.epoch}"), len(starts))]
        ends = np.cumsum(bounds[:, 1] - bounds[:, 0])
        cuts = [0]
        while cuts[-1] < len(ends):
            begun = ends[cuts[-1] - 1] if cuts[-1] else 0
            full = int(np.searchsorted(ends, begun + self.window_samples)) + 1
            cuts.append(min(len(ends), max(full, cuts[-1] + FEWEST_PARTS)))
        if len(cuts) > 2 and ends[-1] - ends[cuts[-2] - 1] < self.window_samples // 2:
            del cuts[-2]  # what is left over is too little to be drawn from
        return tuple(
            OrderWindow(first=int(ends[here - 1]) if here else 0, last=int(ends[there - 1]), parts=bounds[here:there])
            for here, there in pairwise(cuts)
        )

    @property
    def parts_checksum(self) -> str:
        """What the order depends on beside its other settings: where parts begin; empty where that is no matter."""
        if len(self.windows) < 2:
            return ""
        return hashlib.sha256(self._part_starts.astype("<i8").tobytes()).hexdigest()[:32]

    @property
    def _part_starts(self) -> NDArray[np.int64]:
        """The first samples of parts that have any."""
        if self.parts is None:
            return np.arange(0, self.num_samples or 1, PART_SAMPLES)
        starts = np.unique(np.asarray(self.parts, dtype=np.int64))
        return starts[starts < (self.num_samples or 1)]

    @cached_property
    def _window_ends(self) -> NDArray[np.int64]:
        return np.array([window.last for window in self.windows])

    def window_at(self, position: int) -> int:
        """Return the number of the window that holds a position."""
        return int(np.searchsorted(self._window_ends, position, side="right"))

    def _blocks(self, number: int) -> WindowBlocks:
        """Return the blocks of a window; those of the last few are kept."""
        kept: tuple[tuple[int, WindowBlocks], ...] = self.__dict__.get("_kept", ())
        for one, blocks in kept:
            if one == number:
                return blocks
        blocks = self._drawn(number)
        self.__dict__["_kept"] = ((number, blocks), *kept[:1])  # replaced as a whole: several threads read
        return blocks

    def _drawn(self, number: int) -> WindowBlocks:
        """Draw the order of a window's blocks."""
        window = self.windows[number]
        if len(self.windows) == 1:  # parts make no difference then
            firsts = np.arange(0, window.last, self.block_samples)
            ends = np.append(firsts[1:], window.last)
            purpose = f"blocks/{self.epoch}"
        else:
            each = [np.arange(first, last, self.block_samples) for first, last in window.parts]
            firsts = np.concatenate(each)
            ends = np.concatenate([np.append(own[1:], last) for own, (_, last) in zip(each, window.parts, strict=True)])
            purpose = f"blocks/{self.epoch}/{number}"
        drawn = _permutation(stream_number(self.seed, purpose), len(firsts))
        begins = np.concatenate([[0], np.cumsum((ends - firsts)[drawn])]) + window.first
        if len(self.windows) == 1:
            return WindowBlocks(begins, firsts[drawn], drawn.tolist())
        return WindowBlocks(begins, firsts[drawn], [f"at {first}" for first in firsts[drawn].tolist()])

    def _block_at(self, position: int) -> tuple[int, int, int, str | int]:
        """Return where the block that holds a position begins and ends in the order, its first sample and purpose."""
        if self.num_samples is None or not self.shuffle:
            turn = position // self.block_samples
            begin = turn * self.block_samples
            return begin, self._end(begin + self.block_samples), begin, turn
        blocks = self._blocks(self.window_at(position))
        here = int(np.searchsorted(blocks.begins, position, side="right")) - 1
        begin, end = blocks.begins[here : here + 2].tolist()
        return begin, end, int(blocks.firsts[here]), blocks.purposes[here]

    def _end(self, last: int) -> int:
        return last if self.num_samples is None else min(last, self.num_samples)

    def _stream(self, purpose: str | int) -> int:
        return stream_number(self.seed, f"order/{self.epoch}/{purpose}")

    def _shuffled(self, purpose: str | int, size: int) -> NDArray[np.int64]:
        """Return the order within a block."""
        return _permutation(self._stream(purpose), size)


@lru_cache(maxsize=8)
def _permutation(stream: int, size: int) -> NDArray[np.int64]:
    """Return the numbers below `size` in the random order of a stream."""
    from dovetail.data.shuffling import shuffle_into  # noqa: PLC0415 - compiles

    order = np.empty(size, dtype=np.int64)
    shuffle_into(np.uint64(stream), 0, order)
    order.setflags(write=False)
    return order


def window_of(schema: Schema) -> int:
    """Return how many samples of a schema a window has: `WINDOW_BYTES`, as batches hold them."""
    sizes = [int(np.prod([length or 1 for length in field.shape])) for field in schema.fields]
    labels = int(np.prod(schema.label_shape))
    num_bytes = 4 * schema.num_dense + 8 * schema.num_slots + 4 * labels + 8 * sum(sizes)
    return max(1, WINDOW_BYTES // num_bytes)
