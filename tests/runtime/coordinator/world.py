"""The conductor of a run with everyone else made up: servers and workers that keep to the protocol and compute nothing.

Instead of parameters they hold how often each position of the data was counted. Every message waits in a channel until
it is delivered, in an order that a test chooses; processes die, hang and come back when a test says so.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from dovetail.runtime.blueprint import Blueprint, ServerSpec, StageSpec
from dovetail.runtime.checkpoint import Manifest
from dovetail.runtime.coordinator.conductor import Conductor
from dovetail.runtime.coordinator.decisions import Counted, Say, Send, Write
from dovetail.runtime.coordinator.journal import Line, past_of
from dovetail.runtime.coordinator.saving import Kept
from dovetail.runtime.messages import (
    Accepted,
    Adopt,
    Alive,
    Apply,
    Assign,
    Close,
    Commit,
    Committed,
    Died,
    Done,
    Extend,
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
    Reduced,
    Reset,
    RingMeets,
    Save,
    SaveBegun,
    Saved,
    SaveDense,
    SaveFailed,
    SaveNow,
    Staff,
    Stop,
    WhoAreYou,
)
from dovetail.spec.run import Run, RunFaults, RunModel, RunTraining, RunWorker
from dovetail.spec.run_keeping import RunSaving
from dovetail.spec.run_optimizer import RunOptimizer
from dovetail.spec.run_stage import RunStage

Counts = Counter[int]


def make_blueprint(
    *, samples: int = 12, batch: int = 4, servers: int = 2, workers: int = 2, every_steps: int | None = 1,
    clip: bool = False, stages: tuple[int, ...] = (), **training: Any,
) -> Blueprint:  # fmt: skip
    """Return the blueprint of a run that exists nowhere else."""
    nowhere = ServerSpec(name="coordinator", address="", local_address="")
    return Blueprint(
        run=Run(
            model=RunModel(name="none"),
            training=RunTraining(**training),
            optimizer=RunOptimizer(clip_norm=1.0 if clip else None),
            workers=[RunWorker(count=workers)]
            + [RunWorker(name=f"stage-{n}", count=count, stage=n) for n, count in enumerate(stages, 1)],
            stages=[RunStage(first_layer=n, last_layer=n) for n in range(len(stages) + 1)] if stages else [],
            checkpoint=RunSaving(every_steps=every_steps),
            faults=RunFaults(patience_s=10.0),
        ),
        tables=(), dense=(), samples=samples, batch=batch, optimizer={}, row_optimizer={},
        coordinator=nowhere, lanes=None, stages=_stage_specs(stages),
        servers=tuple(ServerSpec(name=f"server-{n}", address="", local_address="") for n in range(servers)),
    )  # fmt: skip


def _stage_specs(stages: tuple[int, ...]) -> tuple[StageSpec, ...]:
    """Return the stages, with so many workers in each after the first."""
    if not stages:
        return ()
    later = (
        StageSpec(
            first=stage,
            last=stage,
            workers=tuple(
                ServerSpec(name=f"stage-{stage}-{n}" if count > 1 else f"stage-{stage}", address="", local_address="")
                for n in range(count)
            ),
        )
        for stage, count in enumerate(stages, 1)
    )
    return (StageSpec(first=0, last=0), *later)


@dataclass
class Snapshot:
    """A checkpoint: what each server held, and the dense parameters of a ring."""

    manifest: Manifest
    rows: dict[str, Counts] = field(default_factory=dict)
    dense: Counts | None = None


class MemoryShelf:
    """Checkpoints in memory; whatever is published is checked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = itertools.count()
        self.snapshots: dict[str, Snapshot] = {}
        self.begin(0, 0)
        first = Manifest(step=0, position=0, dense_steps=0, num_servers=0, samples=world.blueprint.samples)
        self.snapshots["partial-0"].dense = Counter()
        self._newest = self.publish(Path("partial-0"), first)

    def newest(self) -> Kept:
        return self._newest

    def begin(self, step: int, generation: int) -> Path:
        folder = f"partial-{next(self._numbers)}"
        self.snapshots[folder] = Snapshot(Manifest(step=step, position=0, dense_steps=0, num_servers=0, samples=0))
        return Path(folder)

    def publish(self, partial: Path, manifest: Manifest) -> Kept:
        snapshot = self.snapshots[str(partial)]
        snapshot.manifest = manifest
        expected = Counter(range(manifest.position))
        names = self._world.conductor.roster.server_names if manifest.num_servers else []
        assert sorted(snapshot.rows) == sorted(names), "every server's part is there"
        for rows in snapshot.rows.values():
            assert rows == expected, f"checkpoint of {manifest.position} positions holds {rows - expected}"
        if self._world.has_ring:
            assert snapshot.dense == expected, f"ring at {manifest.position}: {snapshot.dense}"
        self._newest = Kept(partial, manifest)
        return self._newest

    def forget(self, partial: Path) -> None:
        del self.snapshots[str(partial)]


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

    def hello(self) -> None:
        self.tell(
            Hello(role="server", name=self.name, process_id=self.process_id, generation=self.generation,
                  version=self.version, era=self.era)
        )  # fmt: skip

    def handle(self, message: Message) -> None:
        if isinstance(message, Load | Adopt) and message.generation == self.generation:
            self._become(message.generation)
        elif isinstance(message, Load):
            snapshot = self.world.shelf.snapshots[Path(message.folder).name]
            kept = next(iter(snapshot.rows.values()), Counter())
            self.rows, self.version, self.era = Counter(kept), snapshot.manifest.step, message.generation
            self.all_before = 0
            self.accepted.clear()
            self._become(message.generation)
        elif isinstance(message, Adopt):
            if self.world.is_sync:
                self.accepted.clear()
            self._become(message.generation)
        elif isinstance(message, Commit) and message.generation == self.generation:
            if message.step == self.version:
                for positions in self.accepted.values():
                    self.rows.update(positions)
                self.accepted.clear()
                self.version += 1
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
        snapshot = self.world.shelf.snapshots.get(Path(message.folder).name)
        if snapshot is not None:
            snapshot.rows[self.name] = Counter(self.rows)
        self.tell(SaveBegun(**about))
        self.tell(Saved(**about, files={}))

    def _become(self, generation: int) -> None:
        self.generation = generation
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
class ModelTask:
    """A task as a worker has it."""

    assign: Assign
    ranges: list[tuple[int, int]]
    closed: bool
    asked: bool = False
    route: dict[str, int] | None = None
    """Workers of later stages that compute it, by name and process id; None before it takes off."""


@dataclass
class ModelStageWorker(Process):
    """Computes for others, and loses all of it when it dies."""

    hangs: bool = False

    def hello(self) -> None:
        self.tell(Hello(role="stage worker", name=self.name, process_id=self.process_id, generation=self.generation))

    def handle(self, message: Message) -> None:
        if isinstance(message, Reset):
            self.generation = message.generation
        elif isinstance(message, WhoAreYou):
            self.hello()
        elif isinstance(message, Stop):
            self.stopped = True


@dataclass
class ModelWorker(Process):
    """Computes nothing, and keeps counts of positions where it is in a ring."""

    hangs: bool = False
    tasks: dict[tuple[int, int], ModelTask] = field(default_factory=dict)
    dense: Counts = field(default_factory=Counter)
    era: int = -1
    version: int = -1
    ring: JoinRing | None = None
    in_ring: int = -1
    saved: Saved | None = None
    staff: tuple[tuple[str, ...], ...] = ()
    part: tuple[int, tuple[int, ...]] | None = None
    summed: tuple[int, Counts] | None = None

    def hello(self) -> None:
        self.tell(
            Hello(role="worker", name=self.name, process_id=self.process_id, generation=self.generation,
                  version=self.version, era=self.era)
        )  # fmt: skip

    def handle(self, message: Message) -> None:
        if isinstance(message, Reset):
            self.generation, self.staff = message.generation, message.stages
            self.tasks.clear()
            self.ring = self.part = self.summed = self.saved = None
            if self.world.has_ring:
                self.tell(Holds(name=self.name, generation=self.generation, era=self.era, version=self.version))
        elif isinstance(message, WhoAreYou):
            self.hello()
        elif isinstance(message, Stop):
            self.stopped = True
        elif isinstance(message, Staff):
            self.staff = message.stages
        elif getattr(message, "generation", -1) != self.generation:
            return
        elif isinstance(message, Assign):
            task = ModelTask(message, list(message.ranges), closed=not message.is_open)
            self.tasks[message.step, message.task] = task
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
            self._of_ring(message)

    def _of_ring(self, message: Message) -> None:
        if isinstance(message, JoinRing):
            if not message.meeting and len(message.members) > 1:
                self.tell(RingMeets(name=self.name, generation=self.generation, meeting="there"))
            else:
                self.ring = message
        elif isinstance(message, Apply) and self.summed is not None and self.summed[0] == message.step:
            self.dense += self.summed[1]
            self.version = message.step + 1
            self.summed = None
        elif isinstance(message, SaveDense) and self.saved is not None and self.saved.number == message.number:
            self.tell(self.saved)
        elif isinstance(message, SaveDense) and message.step != self.version:
            about = {"name": self.name, "generation": message.generation, "number": message.number}
            self.tell(SaveFailed(**about, error=f"it holds {self.version} steps", hint=""))
        elif isinstance(message, SaveDense):
            snapshot = self.world.shelf.snapshots.get(Path(message.folder).name)
            if snapshot is not None:
                snapshot.dense = Counter(self.dense)
            self.saved = Saved(name=self.name, generation=message.generation, number=message.number, files={})
            self.tell(self.saved)

    def work(self) -> None:
        """Go one step further with the first task."""
        if self.hangs or not self.tasks or self.part is not None or self.summed is not None:
            return  # in a ring it waits until the step is applied
        key = min(self.tasks)
        task, assign = self.tasks[key], self.tasks[key].assign
        servers = self.world.servers.values()
        if any(server.generation != self.generation for server in servers):
            return
        if self.world.is_sync and any(server.version < assign.step for server in servers):
            return  # its rows are not up to date: the request is parked
        if not self._comes_back(task):
            return
        if not task.closed:
            if not task.asked:
                task.asked = True
                self.tell(More(generation=self.generation, step=assign.step, task=assign.task))
            return
        del self.tasks[key]
        begin = assign.epoch * self.world.blueprint.samples
        positions = tuple(begin + at for first, last in task.ranges for at in range(first, last))
        if self.world.has_ring:
            self.part = (assign.step, positions)
        self.world.pushes.extend(
            Push(self, server.name, self.generation, assign.step, assign.task, positions) for server in servers
        )
        self.tell(
            Done(name=self.name, generation=self.generation, step=assign.step, task=assign.task,
                 samples=len(positions), loss=0.0, compute_s=0.1, fixed_s=0.01, wait_s=0.0)
        )  # fmt: skip

    def _comes_back(self, task: ModelTask) -> bool:
        """Say whether a task has been through the later stages: whoever had it must still be the same process."""
        there = self.world.stage_workers
        if not self.world.blueprint.stages:
            return True
        if task.route is None and self.staff and all(self.staff):
            names = [self.world.random.choice(names) for names in self.staff]
            task.route = {name: there[name].process_id if name in there else 0 for name in names}
            return False  # it is on its way
        return task.route is not None and all(
            name in there and there[name].process_id == process_id and not there[name].hangs
            for name, process_id in task.route.items()
        )


class World:
    """A conductor, its servers and workers, and all that is between them."""

    def __init__(self, blueprint: Blueprint, seed: int = 0) -> None:
        self.blueprint = blueprint
        self.random = Random(seed)
        self.is_sync = blueprint.run.training.mode == "sync"
        self.has_ring = blueprint.run.training.dense == "ring"
        self.total = blueprint.samples * blueprint.run.training.epochs
        self.now_s = 0.0
        self.journal: list[Line] = []
        self.events: list[str] = []
        self.to_coordinator: deque[tuple[bytes, Message]] = deque()
        self.pushes: list[Push] = []
        self._ids = itertools.count(100)
        self.servers: dict[str, ModelServer] = {}
        self.workers: dict[str, ModelWorker] = {}
        self.stage_workers: dict[str, ModelStageWorker] = {}
        self.away: set[str] = set()
        self.conductor: Conductor = None  # type: ignore[assignment]
        self.shelf: MemoryShelf = None  # type: ignore[assignment]
        self.shelf = MemoryShelf(self)
        self._begin_conductor()
        for spec in blueprint.servers:
            self.start(spec.name)
        for name, _ in blueprint.run.each_worker():
            self.start(name)

    def _begin_conductor(self) -> None:
        past = past_of(iter(self.journal))
        self.conductor = Conductor(self.blueprint, self.shelf, past, self.now_s)

    # -- what can happen -----------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process that is not there."""
        self.away.discard(name)
        process: ModelServer | ModelWorker | ModelStageWorker
        if name.startswith("stage-"):
            process = self.stage_workers[name] = ModelStageWorker(self, name, next(self._ids))
        elif name.startswith("server"):
            process = self.servers[name] = ModelServer(self, name, next(self._ids))
        else:
            process = self.workers[name] = ModelWorker(self, name, next(self._ids))
        process.hello()

    def kill(self, name: str, *, told: bool = True) -> None:
        """End a process; what it sent is still on its way."""
        process = self.servers.pop(name, None) or self.stage_workers.pop(name, None) or self.workers.pop(name)
        self.away.add(name)
        self.pushes = [push for push in self.pushes if push.server != name]
        if told:
            died = Died(name=name, process_id=process.process_id, how="killed", comes_back=True)
            self.to_coordinator.append((b"launcher/1", died))

    def kill_coordinator(self) -> None:
        """End the coordinator and start it again; some of what it sent last arrives, late."""
        self.to_coordinator.clear()
        for process in self.processes():
            keep = self.random.randint(0, len(process.to_it))
            process.to_it = deque(list(process.to_it)[:keep])
            process.to_it.append(WhoAreYou())  # as any message to a coordinator that does not know the sender
        self._begin_conductor()

    def processes(self) -> list[Process]:
        """Return everyone but the coordinator."""
        return [*self.servers.values(), *self.stage_workers.values(), *self.workers.values()]

    def deliver_to_coordinator(self) -> None:
        """Have the coordinator take in a message: the first of one of those who sent any."""
        senders = list(dict.fromkeys(sender for sender, _ in self.to_coordinator))
        sender = self.random.choice(senders)
        at = next(place for place, (who, _) in enumerate(self.to_coordinator) if who == sender)
        message = self.to_coordinator[at][1]
        del self.to_coordinator[at]
        self._receive(sender, message)

    def _receive(self, sender: bytes, message: Any) -> None:
        if isinstance(message, Hello):
            self.conductor.hello(sender, message, self.now_s)
        elif isinstance(message, Died):
            self.conductor.died(message, self.now_s)
        elif isinstance(message, SaveNow):
            self.conductor.save_now(message, self.now_s)
        else:
            member = self.conductor.roster.sender(sender)
            if member is None:
                self._send(sender, WhoAreYou())
            else:
                self.conductor.received(member, message, self.now_s)
        self._carry_out()

    def _send(self, to: bytes, message: Message) -> None:
        for process in self.processes():
            if process.address == to:
                process.to_it.append(message)

    def _carry_out(self) -> None:
        for decision in self.conductor.decisions.take():
            if isinstance(decision, Send):
                self._send(decision.to, decision.message)
            elif isinstance(decision, Write):
                if decision.line.start is not None:
                    self.journal.clear()
                self.journal.append(decision.line)
            elif isinstance(decision, Say):
                self.events.append(decision.text)
            else:
                assert isinstance(decision, Counted)

    def deliver_push(self) -> None:
        """Have a server take in the gradients of a task: each worker's come in order, workers' in any."""
        at = self.random.randrange(len(self.pushes))
        push = self.pushes[at]
        at = next(n for n, p in enumerate(self.pushes) if p.worker is push.worker and p.server == push.server)
        push = self.pushes.pop(at)
        self.servers[push.server].push(push)

    def ring_moves(self) -> bool:
        """Have a ring form, or sum its gradients, where all its members are ready; True where something was done."""
        joining = [worker for worker in self.workers.values() if worker.ring is not None and not worker.hangs]
        for worker in joining:
            ring = worker.ring
            assert ring is not None
            members = [self.workers.get(name) for name in ring.members]
            present = [each for each in members if each in joining and each.ring is not None]
            if len(present) < len(members) or any(each.ring.generation != ring.generation for each in present):
                continue
            if not all(each.in_ring == ring.generation for each in present):
                self._form(ring, present)
                return True
            parts = [each.part for each in present]
            if all(part is not None for part in parts) and len({part[0] for part in parts if part}) == 1:
                step = parts[0][0]  # type: ignore[index]
                total = Counter(at for part in parts if part for at in part[1])
                for each in present:
                    each.part, each.summed = None, (step, total)
                    each.tell(Reduced(name=each.name, generation=each.generation, step=step))
                return True
        return False

    def _form(self, ring: JoinRing, present: list[ModelWorker]) -> None:
        if ring.source:
            source = self.workers[ring.source]
            state = (Counter(source.dense), source.version)
            assert (source.era, source.version) == (ring.era, ring.step), "the source holds what it should"
        else:
            snapshot = self.shelf.snapshots[Path(ring.folder).name]
            state = (Counter(snapshot.dense or {}), snapshot.manifest.step)
        for each in present:
            each.dense, each.version, each.era = Counter(state[0]), state[1], ring.era
            each.in_ring = ring.generation
            each.tell(InRing(name=each.name, generation=each.generation, version=each.version))

    def heartbeat(self, process: Process) -> None:
        """Have a process give a sign of life."""
        hangs = isinstance(process, ModelWorker | ModelStageWorker) and process.hangs
        process.tell(Alive(name=process.name, stuck_s=1000.0 if hangs else 0.0))

    def tick(self, seconds: float = 0.5) -> None:
        """Let time pass; the launcher starts what is away and ends what is lost."""
        self.now_s += seconds
        self.conductor.tick(self.now_s)
        self._carry_out()
        for name, process_id in list(self.conductor.lost.items()):
            process = self.servers.get(name) or self.stage_workers.get(name) or self.workers.get(name)
            if process is not None and process.process_id == process_id:
                self.kill(name)

    # -- until the end -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let something happen that is no fault; False where nothing can but the passing of time."""
        choices: list[Any] = []
        if self.to_coordinator:
            choices += [self.deliver_to_coordinator] * 3
        if self.pushes:
            choices += [self.deliver_push] * 2
        choices += [lambda p=p: p.handle(p.to_it.popleft()) for p in self.processes() if p.to_it]
        choices += [worker.work for worker in self.workers.values() if worker.tasks and not worker.hangs]
        choices += [lambda name=name: self.start(name) for name in sorted(self.away)]
        if not choices:
            return self.ring_moves()
        self.random.choice(choices)()
        if self.random.random() < 0.3:
            self.ring_moves()
        return True

    def run(self, most: int = 20_000) -> None:
        """Go on without faults until the run is over."""
        quiet = 0
        for _ in range(most):
            if self.conductor.state.is_over:
                return
            moved = self.step() if quiet < 200 else False
            quiet = quiet + 1 if moved else 0
            if not moved or self.random.random() < 0.02:
                quiet = 0
                for process in self.processes():
                    if not process.stopped:
                        self.heartbeat(process)
                self.tick()
        raise AssertionError(f"the run does not end: {self.conductor.state}, {self.events[-8:]}")
