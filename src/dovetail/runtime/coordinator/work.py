"""How work is handed out and counted: one protocol, one way for `sync` and one for `ssp` and `async`.

What implements it decides and does nothing: it is told what happened and what time it is, and leaves decisions and at
most one wish. The state machine carries out the wish; the loop carries out the decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.coordinator.journal import CommitLine, Past, StartLine
from dovetail.runtime.coordinator.membership import Member, Worker
from dovetail.runtime.messages import Message


@dataclass(frozen=True, slots=True)
class GoBack:
    """The run has to go back to its last checkpoint."""

    reason: str


@dataclass(frozen=True, slots=True)
class BeginAgain:
    """What is under way has to be thrown away; servers keep their state."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The run cannot go on."""

    error: str
    hint: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Every sample is done."""


Wish = GoBack | BeginAgain | Fail | Finish


class Pause(Enum):
    """What is held back."""

    NONE = "nothing"
    TO_SAVE = "what a checkpoint that is wanted should not hold"
    TO_STOP = "everything that the last checkpoint would not hold"


class Work(Protocol):
    """What the state machine asks of a way to hand out work."""

    wish: Wish | None
    """What it needs and cannot decide itself; whoever carries it out sets it to None."""

    @property
    def step(self) -> int:
        """Return how many steps count; in ssp and async, tasks."""
        ...

    @property
    def position(self) -> int:
        """Return, of all epochs, the first sample that was not handed out (in sync: that does not count)."""
        ...

    @property
    def samples_done(self) -> int:
        """Return how many samples count, over all epochs."""
        ...

    @property
    def can_save(self) -> bool:
        """Say whether a checkpoint can be made of how things are now."""
        ...

    @property
    def num_savers(self) -> int:
        """Return how many write a part of a checkpoint."""
        ...

    @property
    def next_task(self) -> int:
        """Return a number above those of all tasks that are done (ssp, async)."""
        ...

    def start(self, manifest: RunManifest) -> None:
        """Stand where a checkpoint stands."""
        ...

    def go_on(self, past: Past) -> None:
        """Stand where the journal ends."""
        ...

    def stands_at(self, folder: str) -> None:
        """Take what servers do not keep from a checkpoint's folder, which is of this very step."""
        ...

    def as_start(self) -> StartLine:
        """Return where it stands, for the journal; what is under way is to be handed out again."""
        ...

    @property
    def decided(self) -> CommitLine | None:
        """Return the commit that `as_start` counts, and that not all servers have confirmed, where there is one."""
        ...

    def begin(self, now_s: float) -> None:
        """Take in everyone who is there: a generation begins."""
        ...

    def join(self, worker: Worker, now_s: float) -> None:
        """Take in a worker that came later."""
        ...

    def join_stage(self, worker: Worker, now_s: float) -> None:
        """Take in a worker of a later stage that came later."""
        ...

    def drop(self, name: str, now_s: float) -> None:
        """Have others do what a lost worker held."""
        ...

    def handle(self, member: Member, message: Message, now_s: float) -> None:
        """Take in a message of a worker or server."""
        ...

    def tick(self, now_s: float) -> None:
        """Do what is due by time."""
        ...

    def advance(self, now_s: float, pause: Pause) -> None:
        """Do what has become possible: count what is whole, hand out what is left, but for what is held back."""
        ...

    def due_s(self) -> float:
        """Return when someone has to be answered who was kept waiting on purpose."""
        ...

    def save_dense(self, number: int, step: int, folder: str) -> None:
        """Have dense parameters written that servers do not keep; `number` is the checkpoint's."""
        ...

    def manifest(self) -> RunManifest:
        """Return the manifest of a checkpoint of how things are now, without its files."""
        ...
