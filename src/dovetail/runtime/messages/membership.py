"""Messages between the coordinator and everyone: who is there, and how the run goes, for its launcher and others."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from dovetail.runtime.messages.kind import MessageKind

Role = Literal["server", "worker", "stage worker", "launcher"]


class Hello(MessageKind, frozen=True):
    """I am here: the first message of a process, and the answer to `WhoAreYou`."""

    role: Role
    name: str
    process_id: int
    generation: int = 0
    version: int = -1
    """Of a server, and of a worker with the dense parameters of a ring: steps applied; -1 before there is any state."""
    era: int = -1
    """Of the same: the generation that took up the checkpoint from which that state comes."""
    most_samples: int | None = None
    """Of a worker: samples whose task fits its free memory."""
    word: str = ""
    """Of a server that came back: what became of its redo log."""
    missed: int = 0
    """Of a worker: a generation in which it was told something, but not that it began; 0 where there is none."""
    mask_key: str = ""
    """Of a worker whose gradients go under masks: its process's public key for these."""


class WhoAreYou(MessageKind, frozen=True):
    """The coordinator does not know the sender (it came back, or gave the sender up): say hello again."""


class Alive(MessageKind, frozen=True):
    """A sign of life."""

    name: str
    most_samples: int | None = None
    stuck_s: float = 0.0
    """Of a worker: how long one of its threads has been at the same thing."""
    longest_s: float = 0.0
    """The longest that any of them ever was, and then went on."""


class Stop(MessageKind, frozen=True):
    """The run is over, or has failed: end."""

    reason: str = ""


class Leaves(MessageKind, frozen=True):
    """A worker that joined goes of its own accord: others do its tasks."""

    name: str
    why: str


class Failed(MessageKind, frozen=True):
    """A process cannot go on."""

    name: str
    error: str
    hint: str = ""


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
