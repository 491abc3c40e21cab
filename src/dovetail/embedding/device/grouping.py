"""Batches that are planned together, by their distinct keys: one sort for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

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
