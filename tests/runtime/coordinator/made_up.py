"""Servers and workers that keep to the protocol and compute nothing.

Instead of parameters they hold how often each position of the data was counted.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.runtime.messages import (
    Accepted,
    Adopt,
    Apply,
    AskResidual,
    Assign,
    Close,
    Commit,
    Committed,
    Done,
    Extend,
    GaveBack,
    GiveBack,
    Hello,
    Holds,
    InRing,
    JoinRing,
    Load,
    Message,
    More,
    Norm,
    NormIs,
    Ready,
    Recall,
    Reset,
    ResidualTold,
    RingMeets,
    Save,
    SaveBegun,
    Saved,
    SaveDense,
    SaveFailed,
    Staff,
    Stop,
    SumUp,
    WhoAreYou,
)

if TYPE_CHECKING:
    from tests.runtime.coordinator.world import World

Counts = Counter[int]


@dataclass
class Process:
    """A process and its line to the coordinator."""

    world: World
    name: str
    process_id: int
    to_it: deque[Message] = field(default_factory=deque)
    stopped: bool = False
    generation: int = 0

    @property
    def address(self) -> bytes:
        return f"{self.name}/{self.process_id}".encode()

    def tell(self, message: Message) -> None:
        self.world.to_coordinator.append((self.address, message))


@dataclass
class ModelServer(Process):
    """Counts positions as a server steps rows."""

    era: int = -1
    version: int = -1
    rows: Counts = field(default_factory=Counter)
    accepted: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    all_before: int = 0
    begun: tuple[int, int] | None = None
    waits_in: int = -1
    """The generation of what a log brought back that may still be committed."""

    def keep(self) -> None:
        """Have everything in the log, where this server has one: it survives the process."""
        self.world.logs[self.name] = (
            self.era, self.version, Counter(self.rows), dict(self.accepted), self.all_before, self.generation,
        )  # fmt: skip

    def come_back(self) -> None:
        """Be what the log says."""
        if self.name in self.world.logs:
            self.era, self.version, rows, accepted, self.all_before, self.waits_in = self.world.logs[self.name]
            self.rows, self.accepted = Counter(rows), dict(accepted)

    def hello(self) -> None:
        self.tell(
            Hello(role="server", name=self.name, process_id=self.process_id,
                  generation=max(self.generation, self.waits_in), version=self.version, era=self.era)
        )  # fmt: skip

    def handle(self, message: Message) -> None:
        if isinstance(message, Load | Adopt) and message.generation == self.generation:
            self._become(message.generation)
        elif isinstance(message, Load):
            snapshot = self.world.store.snapshots[Path(message.folder).name]
            kept = next(iter(snapshot.rows.values()), Counter())
            self.rows, self.version, self.era = Counter(kept), snapshot.manifest.step, message.generation
            self.all_before = 0
            self.accepted.clear()
            self._become(message.generation)
        elif isinstance(message, Adopt):
            if self.world.is_sync:
                self.accepted.clear()
            self._become(message.generation)
        elif isinstance(message, Commit) and message.generation in (self.generation, self.waits_in):
            if message.step == self.version:
                for positions in self.accepted.values():
                    self.rows.update(positions)
                self.accepted.clear()
                self.version += 1
                self.keep()
            self.tell(Committed(name=self.name, generation=message.generation, step=message.step))
        elif isinstance(message, Norm):
            self.tell(NormIs(name=self.name, generation=message.generation, step=message.step, square=1.0))
        elif isinstance(message, Save) and message.generation == self.generation:
            self._save(message)
        elif isinstance(message, WhoAreYou):
            self.hello()
        elif isinstance(message, Stop):
            self.stopped = True

    def _save(self, message: Save) -> None:
        if self.begun == (message.generation, message.number):
            self.tell(SaveBegun(name=self.name, generation=message.generation, number=message.number))
            return
        about = {"name": self.name, "generation": message.generation, "number": message.number}
        if message.step != self.version:  # it is told late, and has gone on
            self.tell(SaveFailed(**about, error=f"it holds {self.version} steps", hint=""))
            return
        self.begun = (message.generation, message.number)
        self.all_before = max(self.all_before, message.next_task)
        snapshot = self.world.store.snapshots.get(Path(message.folder).name)
        if snapshot is not None:
            snapshot.rows[self.name] = Counter(self.rows)
        self.tell(SaveBegun(**about))
        self.tell(Saved(**about, files={}))

    def _become(self, generation: int) -> None:
        self.generation, self.waits_in = generation, -1
        self.keep()
        self.tell(Ready(name=self.name, generation=generation, version=self.version, era=self.era))

    def push(self, push: Push) -> None:
        if push.generation != self.generation:
            return
        counted = push.task < self.all_before or (push.step, push.task) in self.accepted
        if self.world.is_sync:
            if push.step == self.version and not counted:
                self.accepted[push.step, push.task] = push.positions
        elif not counted:
            self.accepted[push.step, push.task] = push.positions
            self.rows.update(push.positions)
            self.version += 1
        self.keep()
        self.tell(
            Accepted(name=self.name, generation=push.generation, step=push.step, task=push.task,
                     positions=len(push.positions), samples=len(push.positions), loss=0.0)
        )  # fmt: skip


@dataclass(frozen=True)
class Push:
    """A task's gradients on their way to a server."""

    worker: ModelWorker
    server: str
    generation: int
    step: int
    task: int
    positions: tuple[int, ...]


@dataclass
class Flight:
    """Some positions of a task on their way through the later stages."""

    positions: tuple[int, ...]
    route: dict[str, int]
    """Who computes it, by name and process id; the first of them is of the second stage."""
    num_left: int
    """How many of them have not had it on its way back yet."""


@dataclass
class ModelTask:
    """A task as a worker has it."""

    assign: Assign
    ranges: list[tuple[int, int]]
    closed: bool
    asked: bool = False
    num_flown: int = 0
    """How many of its ranges have been through the later stages."""
    flight: Flight | None = None


@dataclass
class RingMember(Process):
    """Keeps counts of positions in place of dense parameters, where its stage has any and the run has rings."""

    hangs: bool = False
    stage: int = 0
    era: int = -1
    version: int = -1
    dense: Counts = field(default_factory=Counter)
    gradients: Counts = field(default_factory=Counter)
    """Added up, and not applied."""
    ring: JoinRing | None = None
    in_ring: int = -1
    """The generation of the ring that it is in."""
    is_alone: bool = True
    part: int | None = None
    """The step whose gradients it waits to sum with the others."""
    summed: int | None = None
    """The step whose sum it holds."""
    saved: Saved | None = None

    @property
    def has_dense(self) -> bool:
        return self.stage in self.world.ring_stages

    def reset(self, generation: int) -> None:
        """Begin a generation, and say which parameters are here."""
        if generation > self.generation:
            self.gradients.clear()
        self.generation = generation
        self.ring = self.part = self.summed = self.saved = None
        if self.has_dense:
            self.tell(Holds(name=self.name, generation=generation, era=self.era, version=self.version))

    def of_ring(self, message: Message) -> None:
        """Do what the coordinator says to members of rings, in this generation."""
        if not self.has_dense:
            return
        if isinstance(message, JoinRing):
            if not message.meeting and len(message.members) > 1:
                self.tell(RingMeets(name=self.name, generation=self.generation, meeting="there"))
            else:
                self.ring = message
        elif isinstance(message, SumUp):
            self.part = message.step
        elif isinstance(message, Apply):
            if self.summed == message.step or (self.is_alone and self.version == message.step):
                self.dense += self.gradients
                self.version = message.step + 1
                self.summed = None
                self.gradients.clear()
        elif isinstance(message, SaveDense):
            self._save(message)

    def _save(self, message: SaveDense) -> None:
        if self.saved is not None and self.saved.number == message.number:
            self.tell(self.saved)
        elif message.step != self.version:
            about = {"name": self.name, "generation": message.generation, "number": message.number}
            self.tell(SaveFailed(**about, error=f"it holds {self.version} steps", hint=""))
        else:
            snapshot = self.world.store.snapshots.get(Path(message.folder).name)
            if snapshot is not None:
                snapshot.dense[self.stage] = Counter(self.dense)
            self.saved = Saved(name=self.name, generation=message.generation, number=message.number, files={})
            self.tell(self.saved)

    def join(self, ring: JoinRing, dense: Counts, version: int) -> None:
        """Take a place in a ring, with the parameters that it begins with."""
        self.dense, self.version, self.era = Counter(dense), version, ring.era
        self.in_ring, self.is_alone = ring.generation, len(ring.members) == 1
        self.gradients.clear()
        self.tell(InRing(name=self.name, generation=ring.generation, version=version))


@dataclass
class ModelStageWorker(RingMember):
    """Computes for others, and loses all of it when it dies."""

    def hello(self) -> None:
        self.tell(Hello(role="stage worker", name=self.name, process_id=self.process_id, generation=self.generation))

    def handle(self, message: Message) -> None:
        if isinstance(message, Reset):
            self.reset(message.generation)
        elif isinstance(message, WhoAreYou):
            self.hello()
        elif isinstance(message, Stop):
            self.stopped = True
        elif getattr(message, "generation", -1) == self.generation:
            self.of_ring(message)

    def compute(self, generation: int, step: int, positions: tuple[int, ...]) -> bool:
        """Take some positions forward and back; False where that has to wait, or is never done."""
        if self.hangs or generation != self.generation:
            return False
        if self.has_dense and (self.in_ring != generation or self.version < step):
            return False
        if self.has_dense:
            self.gradients.update(positions)
        return True


@dataclass
class ModelWorker(RingMember):
    """Computes nothing, and keeps counts of positions where it is in a ring."""

    tasks: dict[tuple[int, int], ModelTask] = field(default_factory=dict)
    staff: tuple[tuple[str, ...], ...] = ()

    def hello(self, missed: int = 0) -> None:
        self.tell(
            Hello(role="worker", name=self.name, process_id=self.process_id, generation=self.generation,
                  version=self.version, era=self.era, missed=missed)
        )  # fmt: skip

    def handle(self, message: Message) -> None:
        if isinstance(message, Reset):
            self.staff = message.stages
            self.tasks.clear()
            self.reset(message.generation)
        elif isinstance(message, WhoAreYou):
            self.hello()
        elif isinstance(message, Stop):
            self.stopped = True
        elif isinstance(message, Staff):
            self.staff = message.stages
        elif getattr(message, "generation", -1) != self.generation:
            self._of_another_generation(message)
        elif isinstance(message, Assign):
            task = ModelTask(message, list(message.ranges), closed=not message.is_open)
            self.tasks[message.step, message.task] = task
        elif isinstance(message, AskResidual):
            self.tell(ResidualTold(name=self.name, generation=message.generation, number=message.number))
        elif isinstance(message, Recall):
            self.tasks.pop((message.step, message.task), None)
        elif isinstance(message, Extend | Close):
            found = self.tasks.get((message.step, message.task))
            if found is not None and isinstance(message, Extend):
                found.ranges.append((message.first, message.last))
                found.asked = False
            elif found is not None:
                found.closed = True
        else:
            self._give_back_or_sum(message)

    def _of_another_generation(self, message: Message) -> None:
        if isinstance(message, Assign | AskResidual) and message.generation > self.generation:
            self.hello(missed=message.generation)

    def _give_back_or_sum(self, message: Message) -> None:
        """Give back some of what is not begun, or nothing; or do what a ring does."""
        if not isinstance(message, GiveBack):
            self.of_ring(message)
            return
        task, given = self.tasks.get((message.step, message.task)), []
        if task is not None and not task.asked and not task.closed and task.flight is None:
            while self.world.random.random() < 0.7 and task.ranges and task.num_flown < len(task.ranges):
                first, last = task.ranges.pop()
                kept = self.world.random.randint(0 if task.ranges else 1, last - first) if last > first else 0
                task.ranges += [(first, first + kept)] if kept or not task.ranges else []
                if kept < last - first:
                    given.insert(0, (first + kept, last))
                if kept:
                    break
        self.world.num_given_back += len(given)
        self.tell(GaveBack(generation=self.generation, step=message.step, task=message.task, ranges=tuple(given)))

    def can_work(self) -> bool:
        """Say whether there is a task to go on with."""
        if self.hangs or not self.tasks or self.part is not None or self.summed is not None:
            return False  # in a ring it waits until the step is applied
        servers, step = self.world.servers.values(), min(self.tasks)[0]
        if any(server.generation != self.generation for server in servers):
            return False
        if self.world.is_sync and any(server.version < step for server in servers):
            return False  # its rows are not up to date: the request is parked
        task = self.tasks[min(self.tasks)]
        return task.closed or not task.asked

    def work(self) -> None:
        """Go one step further with the first task."""
        key = min(self.tasks)
        task, assign = self.tasks[key], self.tasks[key].assign
        servers = self.world.servers.values()
        if not self._comes_back(task):
            return
        if not task.closed:
            task.asked = True
            self.tell(More(generation=self.generation, step=assign.step, task=assign.task))
            return
        del self.tasks[key]
        positions = tuple(at for each in task.ranges for at in self._positions(assign, each))
        if self.has_dense:
            self.part, self.gradients = assign.step, Counter(positions)
        self.world.pushes.extend(
            Push(self, server.name, self.generation, assign.step, assign.task, positions) for server in servers
        )
        self.tell(
            Done(name=self.name, generation=self.generation, step=assign.step, task=assign.task,
                 samples=len(positions), loss=0.0, compute_s=0.1, fixed_s=0.01, wait_s=0.0)
        )  # fmt: skip

    def _positions(self, assign: Assign, within: tuple[int, int]) -> tuple[int, ...]:
        begin = assign.epoch * self.world.blueprint.samples
        return tuple(range(begin + within[0], begin + within[1]))

    def _comes_back(self, task: ModelTask) -> bool:
        """Go one step further with what is on its way; True where all has been through the later stages and back."""
        if not self.world.blueprint.stages or task.num_flown == len(task.ranges):
            return True
        positions, there = self._positions(task.assign, task.ranges[task.num_flown]), self.world.stage_workers
        if not positions:
            task.num_flown += 1
        elif task.flight is None:
            if self.staff and all(self.staff):
                names = [self.world.random.choice(names) for names in self.staff]
                route = {name: there[name].process_id if name in there else 0 for name in names}
                task.flight = Flight(positions, route, len(route))
        elif task.flight.num_left == 0:
            task.flight = None
            task.num_flown += 1
        else:
            name, process_id = list(task.flight.route.items())[task.flight.num_left - 1]
            worker = there.get(name)
            if worker is not None and worker.process_id == process_id:  # whoever had it must still be the same
                step = task.assign.step
                task.flight.num_left -= worker.compute(self.generation, step, positions)
        return task.num_flown == len(task.ranges)
