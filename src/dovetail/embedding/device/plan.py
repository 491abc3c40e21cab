"""Where the rows of one batch lie on the device, found before the batch is trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.device.streams import Moment

DeviceKeys = NDArray[np.int64] | Tensor


LONG_ROW = 64
"""A row that more look-ups of a batch ask for is stepped by itself, and first: it takes longest."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
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
class Plan:
    """One batch on its way: announced, then planned, then taken, then done."""

    keys: DeviceKeys
    insert: bool
    number: int = 0
    """Counts batches in the order in which they are planned."""
    there: Tensor | None = None
    """The keys on the device."""
    inputs: tuple[Tensor, ...] = ()
    """What else of the batch is wanted there."""
    given: Moment | None = None
    """When keys and inputs are there."""
    places: Places | None = None
    error: BaseException | None = None
    planned: Moment | None = None
    """When its rows have their slots."""
    ready: Moment | None = None
    """When its rows are all there."""
    is_ready: bool = False
    is_taken: bool = False
    done: Moment | None = None
    """When nothing reads it any more."""
    generation: int = 0
    kept: list[Any] = field(default_factory=list)
    """Memory that copies under way still read."""

    def forget(self, number: int) -> None:
        """Be as announced, under another number."""
        self.number, self.places, self.planned, self.ready, self.done = number, None, None, None, None
        self.is_ready, self.kept = False, []

    @property
    def num_keys(self) -> int:
        """Return how many look-ups there are."""
        return len(self.keys)
