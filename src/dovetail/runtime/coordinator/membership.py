"""Who takes part in a run, in which generation of it, and how fast each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.runtime.clocks import Deadline, is_stuck
from dovetail.runtime.dispatch import WorkerShare, WorkerSpeed, first_guess
from dovetail.runtime.messages import Alive, Done, Hello, Reset
from dovetail.spec.run import RunWorker

STARTING_S = 60.0
"""How long a process that just began may be silent: it loads its libraries."""


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
    mask_key: str = ""
    """Where its gradients go under masks: its public key for these."""
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
        return is_stuck(self.stuck_s, self.longest_s, patience_s)

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
        mask_key=message.mask_key,
        most_samples=message.most_samples,
    )


def _silence(patience_s: float) -> Deadline:
    return Deadline(k=20.0, floor_s=patience_s, first_s=max(STARTING_S, patience_s))


GRACE_S = 20.0
"""How long the first step waits for workers that are still starting."""


@dataclass(slots=True, kw_only=True)
class Roster:
    """Servers and workers that are there."""

    server_names: Sequence[str]
    """Those that the run has."""
    settings: dict[str, RunWorker]
    """Of the workers that the run file names; others may join."""
    generation: int = 0
    """Goes up whenever work under way is thrown away."""
    era: int = 0
    """The generation that began with a checkpoint; those after it, up to the next, went on from one another.

    The state of a server or of a ring's member is told by its era and its steps: two of one era and as many steps hold
    the same.
    """
    began_at: int = -1
    """The step at which the generation began."""
    servers: dict[str, Server] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    stages: Sequence[Sequence[str]] = ()
    """The workers of each stage after the first, by name; nobody else may be one."""
    stage_workers: dict[str, Worker] = field(default_factory=dict)
    first_worker_s: float | None = None
    has_begun: bool = False
    """Whether the first step could begin: from then on a worker that is lost is not waited for."""

    @property
    def num_servers(self) -> int:
        """Return how many servers the run has."""
        return len(self.server_names)

    @property
    def missing_servers(self) -> list[str]:
        """Return the servers that are not there."""
        return [name for name in self.server_names if name not in self.servers]

    @property
    def servers_are_ready(self) -> bool:
        """Say whether every server is there, and of this generation."""
        return not self.missing_servers and all(server.is_ready for server in self.servers.values())

    @property
    def by_name(self) -> list[Worker]:
        """Return the workers in the order of their names."""
        return [self.workers[name] for name in sorted(self.workers)]

    def may_begin(self, now_s: float) -> bool:
        """Say whether the first step can begin: all workers are there, or have had their time to come."""
        if self.first_worker_s is None or not all(self.staff):
            return False
        if len(self.workers) >= len(self.settings) or now_s - self.first_worker_s > GRACE_S:
            self.has_begun = True
        return self.has_begun

    @property
    def staff(self) -> tuple[tuple[str, ...], ...]:
        """Return who is there, of each stage after the first."""
        return tuple(tuple(name for name in names if name in self.stage_workers) for names in self.stages)

    @property
    def everyone(self) -> list[Member]:
        """Return all who are there."""
        return [*self.servers.values(), *self.stage_workers.values(), *self.workers.values()]

    def reset(self, step: int = -1, *, went_back: bool = False) -> Reset:
        """Return what begins a generation at a step, that of a checkpoint where the run `went_back`."""
        return Reset(generation=self.generation, stages=self.staff, step=step, went_back=went_back)

    def begin(self, step: int, *, went_back: bool) -> Reset:
        """Begin the generation at a step; return what all workers are told."""
        self.began_at = step
        return self.reset(step, went_back=went_back)

    def member(self, name: str) -> Member | None:
        """Return who has a name."""
        return self.servers.get(name) or self.stage_workers.get(name) or self.workers.get(name)

    def sender(self, address: bytes) -> Member | None:
        """Return whose address it is."""
        member = self.member(address.partition(b"/")[0].decode(errors="replace"))
        return member if member is not None and member.address == address else None
