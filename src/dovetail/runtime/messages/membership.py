"""Messages between the coordinator and everyone: who is there."""

from __future__ import annotations

from typing import Literal

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
