"""Where the rows of one batch lie on the device, found before the batch is trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.device.streams import Moment

DeviceKeys = NDArray[np.int64] | Tensor


@dataclass(slots=True, eq=False)
class Places:
    """A batch's rows: look-up i reads slot `slots[i]`; distinct row u, at slot `unique[u]`, is asked for by look-ups
    `order[starts[u]:starts[u + 1]]`, in the order of the batch.

    All have room for as many distinct rows as there are look-ups; of `unique`, the others name no row. `absent` says
    which look-ups have no row, where some have none.
    """

    slots: Tensor
    order: Tensor
    starts: Tensor
    unique: Tensor
    num: Tensor
    num_unique: int
    absent: Tensor | None = None


@dataclass(slots=True, eq=False)
class Plan:
    """One batch on its way: announced, then planned, then taken, then done."""

    number: int
    keys: DeviceKeys
    insert: bool
    given: Moment | None = None
    """When the keys are there, where they come from a device."""
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
    num_missing: int = 0
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


@dataclass(frozen=True, slots=True)
class Grouped:
    """Keys of a batch by their distinct ones: `unique[number_of[i]]` is the i-th of the keys in order."""

    unique: Tensor
    order: Tensor
    number_of: Tensor
    starts: Tensor


def group(keys: Tensor) -> Grouped:
    """Return the distinct keys, and which look-ups ask for each, in the order of the batch."""
    count, device = len(keys), keys.device
    ordered, order = torch.sort(keys, stable=True)
    first = torch.ones(count, dtype=torch.bool, device=device)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    number_of = first.cumsum(0) - 1
    num_unique = int(number_of[-1]) + 1 if count else 0
    unique = torch.empty(num_unique, dtype=torch.int64, device=device)
    unique[number_of] = ordered
    starts = torch.full((count + 2,), count, dtype=torch.int32, device=device)
    begins = torch.where(first, number_of, count + 1)  # those that begin nothing write behind the end
    starts[begins] = torch.arange(count, dtype=torch.int32, device=device)
    return Grouped(unique, order, number_of, starts[:-1])
