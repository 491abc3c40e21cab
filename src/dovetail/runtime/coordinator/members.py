"""Who takes part in a run, and who has been silent or stuck for too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.runtime.deadline import Deadline
from dovetail.runtime.dispatch import WorkerShare, WorkerSpeed, first_guess
from dovetail.runtime.messages import Alive, Done, Hello
from dovetail.spec.run import RunWorker

STARTING_S = 60.0
"""How long a process that just began may be silent: it loads its libraries."""
STUCK = 20.0
"""How many times the longest pause that a worker ever made is no pause any more, it hangs."""
UNKNOWN = 6.0
"""How many times the patience a worker may stand still before anything is known of its pauses: it may compile."""


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
    era: int = -1
    is_ready: bool = False


@dataclass(slots=True)
class Worker(Member):
    """A worker, and how fast it is."""

    lateness: Deadline
    """How much longer tasks take than predicted, in seconds beyond the prediction."""
    settings: RunWorker = field(default_factory=RunWorker)
    speed: WorkerSpeed = field(default_factory=WorkerSpeed)
    most_samples: int | None = None
    stuck_s: float = 0.0
    """How long one of its threads has been at the same thing."""
    longest_s: float = 0.0
    """The longest that any of them ever was, and then went on."""

    def note(self, alive: Alive) -> None:
        """Take in what a sign of life says."""
        self.most_samples = alive.most_samples
        self.stuck_s, self.longest_s = alive.stuck_s, alive.longest_s

    def is_stuck(self, patience_s: float) -> bool:
        """Say whether its computation hangs, though it shows signs of life."""
        limit_s = STUCK * self.longest_s if self.longest_s else UNKNOWN * patience_s
        return self.stuck_s > max(patience_s, limit_s)

    def learn(self, done: Done) -> None:
        """Learn from a task how late it was, how fast the worker is, and what a piece of a step's tail costs it."""
        expected_s = self.speed.seconds(done.samples)
        if expected_s is not None:
            self.lateness.add(max(0.0, done.compute_s + done.fixed_s - expected_s))
        samples, compute_s = done.samples - done.piece_samples, done.compute_s - done.piece_s
        if samples <= 0 or compute_s <= 0:
            self.speed.add(done.samples, done.compute_s, done.fixed_s, piece=True)
            return
        self.speed.add(samples, compute_s, done.fixed_s, push_s=done.push_s)
        if done.num_pieces:
            in_main_s = done.piece_samples * compute_s / samples
            beyond_s = (max(0.0, done.piece_s - in_main_s) + done.piece_wait_s) / done.num_pieces
            self.speed.add(done.piece_samples, in_main_s, beyond_s, piece=True)

    def is_late(self, samples: int, waited_s: float) -> bool:
        """Say whether it should long have been done with so many samples."""
        return waited_s > (self.speed.seconds(samples) or 0.0) + self.lateness.limit_s

    @property
    def cores(self) -> float:
        """Return what workers are compared by before their speed is known."""
        return self.settings.cores if self.settings.cores is not None else float(self.settings.threads)


def shares_of(workers: Sequence[Worker], *, balance: bool) -> list[WorkerShare]:
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


def server_of(message: Hello, address: bytes, now_s: float, patience_s: float) -> Server:
    """Return the server that said hello."""
    return Server(
        name=message.name,
        process_id=message.process_id,
        address=address,
        heard_s=now_s,
        silence=_silence(patience_s),
        version=message.version,
        era=message.era,
    )


def worker_of(message: Hello, address: bytes, now_s: float, patience_s: float, settings: RunWorker) -> Worker:
    """Return the worker that said hello."""
    return Worker(
        name=message.name,
        process_id=message.process_id,
        address=address,
        heard_s=now_s,
        silence=_silence(patience_s),
        lateness=Deadline(k=8.0, floor_s=min(3.0, patience_s), first_s=patience_s),
        settings=settings,
        most_samples=message.most_samples,
    )


def _silence(patience_s: float) -> Deadline:
    """Return the deadline of signs of life."""
    return Deadline(k=20.0, floor_s=patience_s, first_s=max(STARTING_S, patience_s))
