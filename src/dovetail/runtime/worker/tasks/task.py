"""A task as a worker sees it: positions to compute, in micro-batches, until the coordinator closes it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.runtime.messages import Assign, Span
from dovetail.runtime.worker.rows.batch_rows import AheadRows
from dovetail.runtime.worker.rows.keys import LookUp

Floats = NDArray[np.float32]
RowGradients = list[tuple[LookUp, Floats]]
"""Gradients of the rows of each look-up, summed over samples."""


@dataclass(slots=True)
class Task:
    """What was assigned, and what was done of it; numbers count micro-batches."""

    assign: Assign
    closed: bool
    num_known: int = 0
    num_computed: int = 0
    num_pushed: int = 0
    buckets_pushed: dict[int, int] = field(default_factory=dict)
    """By server: buckets of dense gradients that went there before the last push."""
    num_assigned: int = 0
    """Those that the task began with; what comes later are pieces of the step's tail."""
    num_positions: int = 0
    """Of those that are known."""
    next_number: int = 0
    """Of the next micro-batch: one that was given back keeps its own."""
    unbegun: deque[MicroBatch] = field(default_factory=deque)
    """Known micro-batches that are not being computed yet, in their order."""
    given_back: set[int] = field(default_factory=set)
    """Numbers of those that others compute."""
    begun_s: float = 0.0
    """When the last one was begun, on the clock of `time.monotonic`, and how many samples it may have."""
    begun_samples: int = 0
    asked_for_more: bool = False
    recalled: bool = False
    samples: int = 0
    loss: float = 0.0
    compute_s: float = 0.0
    fixed_s: float = 0.0
    wait_s: float = 0.0
    data_s: float = 0.0
    """How long samples were waited for that were still being read."""
    read_s: float = 0.0
    """How long cores were busy reading them, whoever waited."""
    num_pieces: int = 0
    piece_samples: int = 0
    piece_s: float = 0.0
    piece_wait_s: float = 0.0
    stages_s: tuple[float, ...] = ()
    """How long each stage of a run computed for it."""
    spans: list[Span] = field(default_factory=list)
    num_rows: int = 0
    """Where rows are kept: how many were looked up ahead, how many of them did not travel, and their bytes."""
    num_kept: int = 0
    kept_bytes: int = 0

    def add(self, number: int, samples: int, seconds: float) -> None:
        """Count a micro-batch that was computed."""
        self.compute_s += seconds
        if number >= self.num_assigned:
            self.num_pieces += 1
            self.piece_samples += samples
            self.piece_s += seconds

    @property
    def is_whole(self) -> bool:
        """Say whether every micro-batch is computed, and no more will come."""
        return self.closed and self.num_computed == self.num_known


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Positions `first` up to but not including `last` of a task: what is computed at once."""

    task: Task
    number: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArrivingBuckets:
    """Dense parameters on their way here, bucket by bucket; an event each."""

    vector: Floats
    came: list[threading.Event]


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A micro-batch with all that is needed to compute it."""

    micro_batch: MicroBatch
    batch: Batch
    rows: AheadRows
    dense: Floats | None
    fetch_s: float
    after_s: float = 0.0
    """Of that, what could not be done before the servers had the step that it waited for."""
    arriving: ArrivingBuckets | None = None
    """The dense parameters, where they come in buckets."""
    read_s: float = 0.0
    """Of `fetch_s`, how long samples were read."""
    core_s: float = 0.0
    """Of that, how long a core was busy."""


def divide(first: int, last: int, most: int, *, smaller_first: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield a range in pieces of about equal size, at most `most` each; the first may be smaller."""
    if smaller_first is not None and smaller_first < min(most, last - first):
        yield first, first + smaller_first
        first += smaller_first
    count = -(-(last - first) // most)
    for number in range(count):
        yield first + (last - first) * number // count, first + (last - first) * (number + 1) // count
