"""The machine of a run with everyone else made up (`made_up`).

Every message waits in a channel until it is delivered, in an order that a test chooses; processes die, hang and come
back when a test says so.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.coordinator.checkpoints import KeptCheckpoint
from dovetail.runtime.coordinator.decisions import Counted, Say, Send, Write
from dovetail.runtime.coordinator.journal import JournalLine, past_of
from dovetail.runtime.coordinator.state_machine import RunStateMachine
from dovetail.runtime.messages import Alive, Died, Hello, JoinRing, Message, Reduced, SaveNow, WhoAreYou
from tests.runtime.coordinator.made_up import (
    Counts,
    ModelServer,
    ModelStageWorker,
    ModelWorker,
    Process,
    Push,
    RingMember,
)


@dataclass
class Snapshot:
    """A checkpoint: what each server held, and the dense parameters of rings, by stage."""

    manifest: RunManifest
    rows: dict[str, Counts] = field(default_factory=dict)
    dense: dict[int, Counts] = field(default_factory=dict)


class MemoryStore:
    """Checkpoints in memory; whatever is published is checked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = itertools.count()
        self.snapshots: dict[str, Snapshot] = {}
        self.begin(0, 0)
        first = RunManifest(step=0, position=0, dense_steps=0, num_servers=0, samples=world.blueprint.samples)
        self.snapshots["partial-0"].dense = {stage: Counter() for stage in world.ring_stages}
        self._newest = self.publish(Path("partial-0"), first)

    def newest(self) -> KeptCheckpoint:
        return self._newest

    def begin(self, step: int, generation: int) -> Path:
        folder = f"partial-{next(self._numbers)}"
        self.snapshots[folder] = Snapshot(RunManifest(step=step, position=0, dense_steps=0, num_servers=0, samples=0))
        return Path(folder)

    def publish(self, partial: Path, manifest: RunManifest) -> KeptCheckpoint:
        snapshot = self.snapshots[str(partial)]
        snapshot.manifest = manifest
        expected = Counter(range(manifest.position))
        names = self._world.machine.roster.server_names if manifest.num_servers else []
        assert sorted(snapshot.rows) == sorted(names), "every server's part is there"
        for rows in snapshot.rows.values():
            assert rows == expected, f"checkpoint of {manifest.position} positions holds {rows - expected}"
        assert snapshot.dense.keys() == self._world.ring_stages, "every ring's part is there"
        for stage, dense in snapshot.dense.items():
            assert dense == expected, f"stage {stage} at {manifest.position}: {dense - expected}, {expected - dense}"
        self._newest = KeptCheckpoint(partial, manifest)
        return self._newest

    def forget(self, partial: Path) -> None:
        del self.snapshots[str(partial)]


class World:
    """A machine, its servers and workers, and all that is between them."""

    def __init__(self, blueprint: Blueprint, seed: int = 0) -> None:
        self.blueprint = blueprint
        self.random = Random(seed)
        self.is_sync = blueprint.run.training.mode == "sync"
        stages = [n for n, stage in enumerate(blueprint.stages) if stage.has_dense] if blueprint.stages else [0]
        self.ring_stages = frozenset(stages if blueprint.run.training.dense == "ring" else ())
        """Stages whose workers keep dense parameters."""
        self.total = blueprint.samples * blueprint.run.training.epochs
        self.now_s = 0.0
        self.journal: list[JournalLine] = []
        self.events: list[str] = []
        self.to_coordinator: deque[tuple[bytes, Message]] = deque()
        self.pushes: list[Push] = []
        self.num_given_back = 0
        self._ids = itertools.count(100)
        self.servers: dict[str, ModelServer] = {}
        self.workers: dict[str, ModelWorker] = {}
        self.stage_workers: dict[str, ModelStageWorker] = {}
        self.away: set[str] = set()
        self.logs: dict[str, Any] = {}
        """What servers have on disk beside checkpoints; a test may take it away."""
        self.machine: RunStateMachine = None  # type: ignore[assignment]
        self.store: MemoryStore = None  # type: ignore[assignment]
        self.store = MemoryStore(self)
        self._begin_conductor()
        for spec in blueprint.servers:
            self.start(spec.name)
        for name, _ in blueprint.run.each_worker():
            self.start(name)

    def _begin_conductor(self) -> None:
        past = past_of(iter(self.journal))
        self.machine = RunStateMachine(self.blueprint, self.store, past, self.now_s)

    # -- what can happen -----------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process that is not there."""
        self.away.discard(name)
        process: ModelServer | ModelWorker | ModelStageWorker
        if name.startswith("stage-"):
            process = self.stage_workers[name] = ModelStageWorker(
                self, name, next(self._ids), stage=int(name.split("-")[1])
            )
        elif name.startswith("server"):
            process = self.servers[name] = ModelServer(self, name, next(self._ids))
            if self.blueprint.run.faults.redo_log:
                process.come_back()
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
            self.machine.hello(sender, message, self.now_s)
        elif isinstance(message, Died):
            self.machine.died(message, self.now_s)
        elif isinstance(message, SaveNow):
            self.machine.save_now(message, self.now_s)
        else:
            member = self.machine.roster.sender(sender)
            if member is None:
                self._send(sender, WhoAreYou())
            else:
                self.machine.received(member, message, self.now_s)
        self._carry_out()

    def _send(self, to: bytes, message: Message) -> None:
        for process in self.processes():
            if process.address == to:
                process.to_it.append(message)

    def _carry_out(self) -> None:
        for decision in self.machine.decisions.take():
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
        there: dict[str, RingMember] = {**self.workers, **self.stage_workers}
        for member in [each for each in there.values() if each.ring is not None]:
            ring = member.ring
            assert ring is not None
            present = [there[name] for name in ring.members if name in there]
            present = [each for each in present if each.ring is not None and not each.hangs]
            if len(present) < len(ring.members) or any(each.ring.generation != ring.generation for each in present):
                continue
            if not all(each.in_ring == ring.generation for each in present):
                self._form(ring, present)
                return True
            step = member.part
            if step is not None and all(each.part == step for each in present):
                total = Counter(at for each in present for at in each.gradients.elements())
                for each in present:
                    each.part, each.summed, each.gradients = None, step, Counter(total)
                    each.tell(Reduced(name=each.name, generation=each.generation, step=step))
                return True
        return False

    def _form(self, ring: JoinRing, present: list[RingMember]) -> None:
        if ring.source:
            source = next(each for each in present if each.name == ring.source)
            dense, version = Counter(source.dense), source.version
            assert (source.era, source.version) == (ring.era, ring.step), "the source holds what it should"
        else:
            snapshot = self.store.snapshots[Path(ring.folder).name]
            dense, version = Counter(snapshot.dense[present[0].stage]), snapshot.manifest.step
        for each in present:
            each.join(ring, dense, version)

    def heartbeat(self, process: Process) -> None:
        """Have a process give a sign of life."""
        hangs = isinstance(process, RingMember) and process.hangs
        process.tell(Alive(name=process.name, stuck_s=1000.0 if hangs else 0.0))

    def tick(self, seconds: float = 0.5) -> None:
        """Let time pass; the launcher starts what is away and ends what is lost."""
        self.now_s += seconds
        self.machine.tick(self.now_s)
        self._carry_out()
        for name, process_id in list(self.machine.lost.items()):
            process = self.servers.get(name) or self.stage_workers.get(name) or self.workers.get(name)
            if process is not None and process.process_id == process_id:
                self.kill(name)

    def pass_time(self) -> None:
        """Let time pass in which everybody gives a sign of life."""
        for process in self.processes():
            if not process.stopped:
                self.heartbeat(process)
        self.tick()

    # -- until the end -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let something happen that is no fault; False where nothing can but the passing of time."""
        choices: list[Any] = []
        if self.to_coordinator:
            choices += [self.deliver_to_coordinator] * 3
        if self.pushes:
            choices += [self.deliver_push] * 2
        choices += [lambda p=p: p.handle(p.to_it.popleft()) for p in self.processes() if p.to_it]
        choices += [worker.work for worker in self.workers.values() if worker.can_work()]
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
            if self.machine.state.is_over:
                return
            moved = self.step() if quiet < 200 else False
            quiet = quiet + 1 if moved else 0
            if not moved or self.random.random() < 0.02:
                quiet = 0
                self.pass_time()
        raise AssertionError(f"the run does not end: {self.machine.state}, {self.events[-8:]}")
