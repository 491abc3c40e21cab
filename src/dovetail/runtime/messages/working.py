"""Messages between the coordinator and workers: tasks."""

from __future__ import annotations

from typing import Literal

import msgspec

from dovetail.runtime.messages.kind import MessageKind, check_numbers
from dovetail.runtime.messages.masking import MaskKey


class Reset(MessageKind, frozen=True):
    """Throw away what is under way and go on as `generation`."""

    generation: int
    stages: tuple[tuple[str, ...], ...] = ()
    """To workers of the first stage: who is there, in each of the stages after it."""
    step: int = -1
    """Where the run goes on; -1 where that is told to one who came later."""
    went_back: bool = False
    """Whether that is a checkpoint, and not what servers hold."""


class Assign(MessageKind, frozen=True):
    """A task: compute the gradients of these positions of the epoch's order with the parameters after `step` steps.

    While the task is `open`, ask for `More` before the last part is computed.
    """

    generation: int
    step: int
    task: int
    epoch: int
    ranges: tuple[tuple[int, int], ...]
    is_open: bool
    factor: float = 1.0
    batch: int = 0
    """In `sync`: positions of the whole step."""
    clock: int = 0
    """In `ssp`: how many tasks the worker has done, and the slowest one."""
    slowest: int = 0
    masks: tuple[MaskKey, ...] = ()
    """Where sums are masked: the workers of the step, this one among them."""


class More(MessageKind, frozen=True):
    """The worker is about to run out of work: in `busy_s`, of which it takes `fetch_s` to get new work ready."""

    generation: int
    step: int
    task: int
    busy_s: float = 0.0
    fetch_s: float = 0.0


class RanOut(MessageKind, frozen=True):
    """The worker has run out of work before `More` was answered."""

    generation: int


class Extend(MessageKind, frozen=True):
    """More positions for the task."""

    generation: int
    step: int
    task: int
    first: int
    last: int


class Close(MessageKind, frozen=True):
    """There is no more for this task: push its gradients."""

    generation: int
    step: int
    task: int


class Recall(MessageKind, frozen=True):
    """Put a task back that waits for its step: something else comes first, then it is given out again."""

    generation: int
    step: int
    task: int


class GiveBack(MessageKind, frozen=True):
    """Give back positions of an open task that are not begun, as many as one who is free ends sooner.

    It does `samples_per_s`, and begins with them in `fixed_s`.
    """

    generation: int
    step: int
    task: int
    samples_per_s: float
    fixed_s: float


class GaveBack(MessageKind, frozen=True):
    """The positions that a worker gives back, the last of its task; none where all are begun."""

    generation: int
    step: int
    task: int
    ranges: tuple[tuple[int, int], ...] = ()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What a worker did from when to when (seconds since the epoch)."""

    kind: Literal["compute", "read", "fetch", "send", "wait", "reduce"]
    start_s: float
    end_s: float
    step: int

    def __post_init__(self) -> None:
        """Refuse what no worker measures."""
        check_numbers(self)


class Done(MessageKind, frozen=True):
    """A task is pushed to all servers.

    Arrays, now and then: clicked and other samples by score, two sums for each metric, running statistics.
    """

    name: str
    generation: int
    step: int
    task: int
    samples: int
    loss: float
    compute_s: float
    """Spent on samples: proportional to their number."""
    fixed_s: float
    """Spent on parameters and gradients: the same for any number."""
    wait_s: float
    """Idle, waiting for others, since the task before."""
    num_pieces: int = 0
    """Pieces of the tail among it, with their samples and what of `compute_s` they took."""
    piece_samples: int = 0
    piece_s: float = 0.0
    stages_s: tuple[float, ...] = ()
    """In a run with stages: how long each of them computed for the task."""
    spans: tuple[Span, ...] = ()
    piece_wait_s: float = 0.0
    """How long pieces of the tail were waited for, apart from their fetching."""
    push_s: float = 0.0
    """Of `fixed_s`, from when the last gradients were there until servers had them."""
    num_rows: int = 0
    """Where a worker keeps rows: how many it looked up ahead, how many of them did not travel, and their bytes."""
    num_kept: int = 0
    kept_bytes: int = 0
    data_s: float = 0.0
    """How long samples were waited for that were still being read."""
    read_s: float = 0.0
    """How long cores were busy reading them, whoever waited."""
