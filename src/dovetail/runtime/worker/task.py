"""A task as a worker sees it: positions to compute, in parts, until the coordinator closes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.runtime.messages import Assign, Span
from dovetail.runtime.worker.keys import LookUp

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Task:
    """What was assigned, and what was done of it."""

    assign: Assign
    closed: bool
    parts_known: int = 0
    parts_computed: int = 0
    parts_pushed: int = 0
    samples: int = 0
    loss: float = 0.0
    compute_s: float = 0.0
    fixed_s: float = 0.0
    wait_s: float = 0.0
    asked_for_more: bool = False
    recalled: bool = False
    main_parts: int = 0
    num_pieces: int = 0
    piece_samples: int = 0
    piece_s: float = 0.0
    spans: list[Span] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Say whether every part is computed, and no more will come."""
        return self.closed and self.parts_computed == self.parts_known


@dataclass(frozen=True, slots=True)
class Part:
    """A micro-batch of a task: positions `first` up to but not including `last`."""

    task: Task
    number: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A micro-batch with all that is needed to compute it."""

    part: Part
    batch: Batch
    rows: list[tuple[LookUp, Floats]]
    dense: Floats | None
    parked_s: float
    fetch_s: float


def cut(first: int, last: int, most: int, *, first_part: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield a range in parts of about equal size, at most `most` each; the first may be shorter."""
    if first_part is not None and first_part < min(most, last - first):
        yield first, first + first_part
        first += first_part
    count = -(-(last - first) // most)
    for number in range(count):
        yield first + (last - first) * number // count, first + (last - first) * (number + 1) // count
