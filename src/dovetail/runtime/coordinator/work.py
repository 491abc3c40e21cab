"""How work is handed out and counted: one protocol, one way for `sync` and one for `ssp` and `async`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dovetail.runtime.checkpoint import RunCheckpoint
from dovetail.runtime.coordinator.journal import Past, Start
from dovetail.runtime.coordinator.members import Member, Worker
from dovetail.runtime.messages import Message

if TYPE_CHECKING:
    from dovetail.runtime.coordinator.loop import Coordinator


class Work(Protocol):
    """What the coordinator asks of a way to hand out work."""

    step: int
    """Steps that count; in ssp and async, tasks."""
    position: int
    """Of all epochs: the first sample that was not handed out (in sync: that does not count)."""

    def start(self, manifest: RunCheckpoint) -> None:
        """Stand where a checkpoint stands."""
        ...

    def go_on(self, past: Past) -> None:
        """Stand where the journal ends."""
        ...

    def past(self) -> Past:
        """Return where it stands, with what is under way thrown away."""
        ...

    def as_start(self) -> Start:
        """Return where it stands, for the journal."""
        ...

    def begin(self) -> None:
        """Hand out work to everyone."""
        ...

    def join(self, worker: Worker) -> None:
        """Hand out work to a worker that came later."""
        ...

    def drop(self, name: str) -> None:
        """Have others do what a lost worker held."""
        ...

    def heed(self, member: Member, message: Message) -> None:
        """Act on a message of a worker or server."""
        ...

    def seconds_to_wait(self) -> float:
        """Return how long nothing has to be answered."""
        ...

    def answer_due(self) -> None:
        """Answer who was kept waiting on purpose."""
        ...

    def look(self, now_s: float) -> None:
        """Do what is due by time."""
        ...

    def pause(self) -> None:
        """Come to a point at which a checkpoint can be cut, and then call the coordinator's `cut`."""
        ...

    def save_dense(self, folder: str) -> None:
        """Have dense parameters written that servers do not keep."""
        ...

    def manifest(self, *, files: dict[str, str]) -> RunCheckpoint:
        """Return the manifest of a checkpoint cut now."""
        ...


def make_work(coordinator: Coordinator) -> Work:
    """Return the way that the run asks for."""
    from dovetail.runtime.coordinator.pool_work import PoolWork  # noqa: PLC0415 - each imports this module
    from dovetail.runtime.coordinator.sync_work import SyncWork  # noqa: PLC0415

    return SyncWork(coordinator) if coordinator.blueprint.run.training.mode == "sync" else PoolWork(coordinator)
