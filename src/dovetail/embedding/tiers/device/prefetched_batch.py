"""A batch on its way to the device: where its rows lie, found before it is trained on.

Batches that are planned together are grouped by their distinct keys: one sort for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.tiers.device.streams import StagedArrays, StreamEvent

DeviceKeys = NDArray[np.int64] | Tensor


LONG_ROW = 64
"""A row that more look-ups of a batch ask for is stepped by itself, and first: it takes longest."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlaces:
    """Where a batch's rows lie, and who asks for each.

    Look-up i reads slot `slots[i]`; distinct row u, at slot `unique[u]`, is asked for by the look-ups
    `order[starts[u]:starts[u + 1]]`, in the order of the batch.

    All are parts of one vector of int32, with room for as many distinct rows as there are look-ups: batches of one size
    can be copied over each other at once. `num[0]` says how many distinct rows there are, and the rest of `unique`
    names no row. `long[0]` says how many rows have more than `LONG_ROW` look-ups, and the next ones which.
    """

    numbers: Tensor
    num_keys: int
    num_unique: int

    @property
    def slots(self) -> Tensor:
        """Return the slot of each look-up."""
        return self.numbers[: self.num_keys]

    @property
    def order(self) -> Tensor:
        """Return the look-ups by the distinct row that they ask for."""
        return self.numbers[self.num_keys : 2 * self.num_keys]

    @property
    def unique(self) -> Tensor:
        """Return the distinct slots, then as many times no slot as there is room."""
        return self.numbers[2 * self.num_keys : 3 * self.num_keys]

    @property
    def starts(self) -> Tensor:
        """Return where the look-ups of each distinct row begin."""
        return self.numbers[3 * self.num_keys : 4 * self.num_keys + 1]

    @property
    def num(self) -> Tensor:
        """Return how many distinct rows there are, as kernels read it."""
        return self.numbers[4 * self.num_keys + 1 : 4 * self.num_keys + 2]

    @property
    def long(self) -> Tensor:
        """Return how many rows have many look-ups, and which."""
        return self.numbers[4 * self.num_keys + 2 :]


def places_size(num_keys: int) -> int:
    """Return how many numbers the places of so many look-ups are; even, so that those of the next batch are aligned."""
    return (4 * num_keys + 3 + num_keys // LONG_ROW + 1) // 2 * 2


@dataclass(slots=True, eq=False)
class PrefetchedBatch:
    """One batch on its way: announced, then planned, then taken, then done."""

    keys: DeviceKeys
    insert: bool
    number: int = 0
    """Counts batches in the order in which they are planned."""
    there: Tensor | None = None
    """The keys on the device."""
    staged: StagedArrays | None = None
    """What else of the batch is wanted there."""
    given: StreamEvent | None = None
    """When keys and inputs are there."""
    places: BatchPlaces | None = None
    error: BaseException | None = None
    planned: StreamEvent | None = None
    """When its rows have their slots."""
    ready: StreamEvent | None = None
    """When its rows are all there."""
    is_ready: bool = False
    is_taken: bool = False
    done: StreamEvent | None = None
    """When nothing reads it any more."""
    generation: int = 0
    kept: list[Any] = field(default_factory=list)
    """Memory that copies under way still read."""

    def forget(self, number: int) -> None:
        """Be as announced, under another number."""
        self.number, self.places, self.planned, self.ready, self.done = number, None, None, None, None
        self.is_ready, self.kept = False, []

    @property
    def staged_arrays(self) -> StagedArrays:
        """Return what else of the batch lies on the device, once it was taken."""
        if self.staged is None:
            raise RuntimeError("a batch was not brought to the device")
        return self.staged

    @property
    def num_keys(self) -> int:
        """Return how many look-ups there are."""
        return len(self.keys)


MOST_TOGETHER = 8
"""Batches planned at once: each launch and each wait for the device then serves so many."""


class Layout:
    """How look-ups of several batches lie one after the other: batch b has those from offsets[b] to offsets[b + 1]."""

    def __init__(self, sizes: tuple[int, ...], device: torch.device) -> None:
        self.num_batches, self.num_keys, self._device = len(sizes), sum(sizes), device
        ends = torch.cumsum(torch.tensor(sizes), dim=0)
        begins = ends - torch.tensor(sizes)
        self.begins: list[int] = begins.tolist()
        self.sizes = sizes
        self.offsets = torch.cat([begins, ends[-1:]]).to(torch.int32).to(device)
        self.heads = begins.to(device)
        """Where each batch begins."""
        self.edges = torch.cat([begins, ends - 1]).to(device)
        """Where each begins, then where the last look-up of each is."""
        self.batch_of = (
            torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(torch.uint8).to(device)
        )

    @cached_property
    def as_it_is(self) -> Tensor:
        """Return the numbers of all look-ups in their order."""
        return torch.arange(self.num_keys).to(self._device)  # there at once, for whichever stream


@lru_cache(maxsize=16)
def layout_of(sizes: tuple[int, ...], device: torch.device) -> Layout:
    """Return the layout of batches of so many look-ups; most batches of a training are of one size."""
    return Layout(sizes, device)


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Look-ups of several batches, by distinct keys over all of them, and by distinct keys of each.

    The i-th look-up by key is `order[i]`, of equal keys the first first; it asks for distinct key `numbers[i] - 1`.
    The j-th by batch, then by key, is `order[by_batch[j]]`; it asks for distinct row `ranks[j] - ranks[begin]` of its
    batch, which begins at j = begin.
    """

    layout: Layout
    ordered: Tensor
    order: Tensor
    numbers: Tensor
    by_batch: Tensor
    ranks: Tensor


def group(keys: Tensor, layout: Layout) -> Grouped:
    """Group the look-ups of batches that lie one after the other."""
    ordered, order = torch.sort(keys, stable=True)
    numbers = _number(ordered)
    if layout.num_batches == 1:
        return Grouped(layout, ordered, order, numbers, layout.as_it_is, numbers)
    by_batch = torch.sort(layout.batch_of[order], stable=True).indices
    return Grouped(layout, ordered, order, numbers, by_batch, _number(numbers[by_batch], layout.heads))


def _number(values: Tensor, heads: Tensor | None = None) -> Tensor:
    """Return 1 for the first of equal neighbours, 2 for the next ones, and so on; at `heads` there is always a next."""
    is_first = torch.ones(len(values), dtype=torch.bool, device=values.device)
    torch.ne(values[1:], values[:-1], out=is_first[1:])
    if heads is not None:
        is_first.index_fill_(0, heads, True)
    return is_first.cumsum(0, dtype=torch.int32)
