"""Who takes part in a run, and who has been silent for too long."""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.runtime.deadline import Deadline
from dovetail.runtime.dispatch import WorkerShare, WorkerSpeed, first_guess
from dovetail.runtime.messages import Done, Hello, ServerStats
from dovetail.spec.run import RunWorker


@dataclass(slots=True)
class Member:
    """A process that said hello."""

    name: str
    process_id: int
    address: bytes
    """Where messages to it go."""
    heard_s: float
    silence: Deadline
    """How long it is silent between signs of life."""

    def hear(self, now_s: float) -> None:
        """Note a sign of life."""
        self.silence.add(now_s - self.heard_s)
        self.heard_s = now_s

    def is_lost(self, now_s: float) -> bool:
        """Say whether it has been silent for longer than it ever should be."""
        return now_s - self.heard_s > self.silence.limit_s


@dataclass(slots=True)
class Server(Member):
    """A server, and what it last said of itself."""

    version: int = -1
    generation: int = 0
    is_ready: bool = False
    stats: ServerStats | None = None


@dataclass(slots=True)
class Worker(Member):
    """A worker, its speed and what it is at."""

    settings: RunWorker = field(default_factory=RunWorker)
    speed: WorkerSpeed = field(default_factory=WorkerSpeed)
    most_samples: int | None = None
    held: list[int] = field(default_factory=list)
    """In ssp and async: numbers of its tasks."""
    at_step: int = -1
    """In sync: the last step it was given a task of."""
    in_ring: bool = False
    samples: int = 0
    idle_s: float = 0.0
    busy_s: float = 0.0
    lateness: Deadline = field(default_factory=lambda: Deadline(k=8.0, floor_s=3.0, first_s=600.0))
    """How much longer tasks take than predicted, in seconds beyond the prediction."""

    def learn(self, done: Done) -> None:
        """Learn from a task how fast the worker is, and what a piece of a step's tail costs it."""
        samples, compute_s = done.samples - done.piece_samples, done.compute_s - done.piece_s
        if samples <= 0 or compute_s <= 0:
            self.speed.add(done.samples, done.compute_s, done.fixed_s, piece=True)
            return
        self.speed.add(samples, compute_s, done.fixed_s)
        if done.num_pieces:
            expected_s = done.piece_samples * compute_s / samples
            beyond_s = max(0.0, done.piece_s - expected_s) / done.num_pieces
            self.speed.add(done.piece_samples, expected_s, beyond_s, piece=True)

    @property
    def cores(self) -> float:
        """Return what workers are compared by before their speed is known."""
        return self.settings.cores if self.settings.cores is not None else float(self.settings.threads)


def shares_of(workers: list[Worker], *, balance: bool) -> list[WorkerShare]:
    """Return what a split needs of the workers; without `balance` all are taken for equal."""
    if not balance:
        return [WorkerShare(name=worker.name, share=worker.settings.share) for worker in workers]
    known = [(worker.speed, worker.cores) for worker in workers]
    return [
        worker.speed.share(
            worker.name,
            most_samples=worker.most_samples,
            pinned=worker.settings.share,
            first_guess=None if worker.speed.known else first_guess(worker.cores, known),
        )
        for worker in workers
    ]


def silence(patience_s: float) -> Deadline:
    """Return the deadline of signs of life."""
    return Deadline(k=20.0, floor_s=patience_s, first_s=max(60.0, patience_s))


def server_of(message: Hello, address: bytes, now_s: float, patience_s: float) -> Server:
    """Return the server that said hello."""
    return Server(
        name=message.name,
        process_id=message.process_id,
        address=address,
        heard_s=now_s,
        silence=silence(patience_s),
        version=message.version,
        generation=message.generation,
    )


def worker_of(message: Hello, address: bytes, now_s: float, patience_s: float, settings: RunWorker) -> Worker:
    """Return the worker that said hello."""
    return Worker(
        name=message.name,
        process_id=message.process_id,
        address=address,
        heard_s=now_s,
        silence=silence(patience_s),
        settings=settings,
        most_samples=message.most_samples,
    )
