"""Messages between the coordinator and those who watch a run: its launcher, and others."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from dovetail.runtime.messages.kind import MessageKind


class Died(MessageKind, frozen=True):
    """The launcher saw a process end."""

    name: str
    process_id: int
    how: str
    comes_back: bool


class Status(MessageKind, frozen=True):
    """Ask how the run goes; asking changes nothing, and anyone may."""

    since: int = 0
    """The number of the first event that the asker has not heard of."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a worker does."""

    name: str
    state: str
    share: float
    """Of the samples of the last steps."""
    samples_per_s: float
    """While it computes."""
    idle: float
    """The part of the last steps' time in which it waited."""
    samples: int
    bits: str = ""
    """Of its links, where their widths are chosen: the fewest there and back."""
    kept: float | None = None
    """Where it keeps rows of servers: the part of those that it looked up that did not travel."""
    data: float = 0.0
    """The part of the last steps' time in which it waited for samples to be read."""


class Report(MessageKind, frozen=True):
    """How the run goes."""

    state: Literal["starting", "running", "going back", "saving", "done", "failed"]
    generation: int
    step: int
    epoch: int
    samples: int
    """Done, over all epochs."""
    total_samples: int
    samples_per_s: float
    loss: float
    auc: float
    checkpoint_step: int
    workers: tuple[WorkerStatus, ...]
    servers: tuple[str, ...]
    events: tuple[str, ...]
    """What happened since the event that was asked for: deaths, restarts, checkpoints."""
    next_event: int
    """The number of the event after those."""
    lost: tuple[tuple[str, int], ...] = ()
    """Processes, with their ids, that are not heard of any more: to be ended and started again."""
    stage_workers: tuple[str, ...] = ()
    """Those of later stages that are there."""
    error: str = ""
    hint: str = ""
    metrics: tuple[tuple[str, float], ...] = ()
    """Others than AUC, by name, of the last seconds' samples."""
    learning_rate: float = 0.0
    """Of dense parameters, at this step."""
    gradient_norm: float = math.nan
    """Of the last step's dense gradient, before it is clipped; in ssp, async and rings it is not known."""
    stages_s: tuple[float, ...] = ()
    """How long each stage computed so far, over all of its workers."""
    staged_samples: int = 0
    """For how many samples, those of steps that were done again among them."""


class SaveNow(MessageKind, frozen=True):
    """Write a checkpoint as soon as a step is over, then stop where `stop` says so."""

    stop: bool = False
