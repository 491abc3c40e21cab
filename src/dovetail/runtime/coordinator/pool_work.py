"""Work in `ssp` and `async`: tasks from one pool, each applied by the servers as it comes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dovetail.models.schedules import make_schedule
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.journal import CommitLine, Past, StartLine, TaskLine
from dovetail.runtime.coordinator.membership import Member, Roster, Worker, shares_of
from dovetail.runtime.coordinator.work import Finish, Pause, Wish
from dovetail.runtime.dispatch import split
from dovetail.runtime.figures import Counted
from dovetail.runtime.messages import Accepted, Assign, Done, Message


@dataclass(slots=True)
class PoolTask:
    """A task: positions `first` up to but not including `last`, over all epochs; all are of one epoch."""

    number: int
    first: int
    last: int
    worker: str = ""
    handed_s: float = 0.0
    accepted: set[str] = field(default_factory=set)
    """Servers that have applied it."""

    @property
    def num_positions(self) -> int:
        """Return how many positions it covers."""
        return self.last - self.first

    @property
    def line(self) -> TaskLine:
        """Return it as the journal has it."""
        return (self.number, self.first, self.last)


@dataclass(slots=True)
class TaskPool:
    """Hands out positions of all epochs in turn, `samples` an epoch."""

    samples: int
    epochs: int
    position: int = 0
    """Over all epochs: the first that was not handed out."""
    next_number: int = 0
    held: dict[int, PoolTask] = field(default_factory=dict)
    returned: deque[PoolTask] = field(default_factory=deque)
    clocks: dict[str, int] = field(default_factory=dict)
    """Tasks that each worker has finished."""

    @property
    def total(self) -> int:
        """Return the positions of all epochs."""
        return self.samples * self.epochs

    @property
    def under_way(self) -> list[PoolTask]:
        """Return the tasks that are not done."""
        return [*self.held.values(), *self.returned]

    @property
    def num_done(self) -> int:
        """Return how many positions are done."""
        return self.position - sum(task.num_positions for task in self.under_way)

    @property
    def is_finished(self) -> bool:
        """Say whether every position is done."""
        return self.position >= self.total and not self.held and not self.returned

    def held_by(self, worker: str) -> int:
        """Return how many tasks a worker holds."""
        return sum(task.worker == worker for task in self.held.values())

    def give_back(self, lines: Iterable[TaskLine]) -> None:
        """Have tasks handed out again under their numbers."""
        self.returned.extend(PoolTask(*line) for line in lines)

    def take(self, worker: str, samples: int, now_s: float) -> PoolTask | None:
        """Return the next task for a worker, or None where nothing is left."""
        if self.returned:
            task = self.returned.popleft()
        elif self.position < self.total:
            end_of_epoch = (self.position // self.samples + 1) * self.samples
            task = PoolTask(self.next_number, self.position, min(end_of_epoch, self.position + samples))
            self.next_number += 1
            self.position = task.last
        else:
            return None
        task.worker, task.handed_s = worker, now_s
        self.held[task.number] = task
        return task

    def accept(self, server: str, number: int, num_servers: int) -> PoolTask | None:
        """Note that a server has applied a task; return it once all have."""
        task = self.held.get(number) or next((each for each in self.returned if each.number == number), None)
        if task is None:
            return None
        task.accepted.add(server)
        if len(task.accepted) < num_servers:
            return None
        if number in self.held:
            del self.held[number]
        else:
            self.returned.remove(task)
        if task.worker in self.clocks:
            self.clocks[task.worker] += 1
        return task

    def take_back(self, number: int) -> None:
        """Have a task handed out again under its number: a server that applied it will not do so again."""
        self.returned.append(self.held.pop(number))

    def drop_worker(self, worker: str) -> None:
        """Take back a worker's tasks."""
        for number in [task.number for task in self.held.values() if task.worker == worker]:
            self.take_back(number)
        self.clocks.pop(worker, None)

    def may_begin(self, worker: str, staleness: int | None) -> bool:
        """Say whether a worker may begin another task: it is at most `staleness` tasks ahead of the slowest."""
        if staleness is None or len(self.clocks) < 2:
            return True
        return self.clocks.get(worker, 0) <= min(self.clocks.values()) + staleness

    def clocks_of(self, worker: str) -> tuple[int, int]:
        """Return how many tasks a worker has done, and the slowest: servers have applied that many of everyone."""
        slowest = min(self.clocks.values(), default=0)
        return self.clocks.get(worker, slowest), slowest

    def join(self, worker: str) -> None:
        """Start a worker's clock with the slowest."""
        self.clocks.setdefault(worker, min(self.clocks.values(), default=0))


HELD = 2
"""Tasks that a worker holds: one it computes, and one whose parameters are on their way."""


class PoolWork:
    """Keeps every worker supplied; in `ssp` none gets too far ahead of the slowest."""

    def __init__(self, blueprint: Blueprint, roster: Roster, decisions: Decisions) -> None:
        """Start at the beginning."""
        self._roster, self._decisions = roster, decisions
        training = blueprint.run.training
        self._batch = blueprint.batch
        self._bounded = training.mode == "ssp"
        self._staleness = training.staleness if self._bounded else None
        self._balance = training.balance
        schedule = blueprint.run.optimizer.schedule
        self._schedule = make_schedule(schedule.name, **schedule.settings())
        self._pool = TaskPool(blueprint.samples, training.epochs)
        self._late: set[str] = set()
        """Workers whose tasks were given to others: they get no more until they show that they go on."""
        self.step = 0
        self.wish: Wish | None = None

    # -- where it stands -----------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Return the first position that was not handed out."""
        return self._pool.position

    @property
    def samples_done(self) -> int:
        """Return how many samples every server has applied."""
        return self._pool.num_done

    @property
    def can_save(self) -> bool:
        """Say whether nothing is under way."""
        return not self._pool.under_way

    @property
    def num_savers(self) -> int:
        """Return how many servers there are: they keep everything."""
        return self._roster.num_servers

    @property
    def next_task(self) -> int:
        """Return the number of the next task."""
        return self._pool.next_number

    def start(self, manifest: RunManifest) -> None:
        """Stand where a checkpoint stands."""
        self._stand(manifest.step, manifest.position)

    def go_on(self, past: Past) -> None:
        """Stand where the journal ends; tasks that are not done go out again under their numbers."""
        self._stand(past.start.step, past.position)
        self._pool.next_number = past.next_task
        self._pool.give_back(past.tasks.values())
        self.step = past.num_counted

    def _stand(self, step: int, position: int) -> None:
        """Forget what is under way."""
        self._pool = TaskPool(self._pool.samples, self._pool.epochs, position=position)
        self._late.clear()
        self.step = step

    def as_start(self) -> StartLine:
        """Return where it stands, for the journal."""
        return StartLine(
            generation=self._roster.generation,
            era=self._roster.era,
            step=self.step,
            position=self._pool.position,
            next_task=self._pool.next_number,
            tasks=tuple(task.line for task in self._pool.under_way),
        )

    @property
    def decided(self) -> CommitLine | None:
        """Return that nothing is decided before it is done."""
        return None

    def stands_at(self, folder: str) -> None:
        """Do nothing: the servers keep all parameters."""

    def save_dense(self, number: int, step: int, folder: str) -> None:
        """Do nothing: the servers keep all parameters."""

    def manifest(self) -> RunManifest:
        """Return the manifest of a checkpoint of how things are now: nothing is under way."""
        return RunManifest(
            step=self.step,
            position=self._pool.position,
            dense_steps=self.step,
            num_servers=self._roster.num_servers,
            samples=self._pool.samples,
        )

    # -- handing out ---------------------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Take in everyone who is there."""
        for name in self._roster.workers:
            self._pool.join(name)

    def join(self, worker: Worker, now_s: float) -> None:
        """Take in a worker that came later."""
        self._pool.join(worker.name)

    def join_stage(self, worker: Worker, now_s: float) -> None:
        """Do nothing: those of the first stage are told who is there."""

    def drop(self, name: str, now_s: float) -> None:
        """Have others do what a lost worker held."""
        self._pool.drop_worker(name)
        self._late.discard(name)

    def due_s(self) -> float:
        """Return that nobody is kept waiting."""
        return math.inf

    def tick(self, now_s: float) -> None:
        """Have tasks that are far too late done by others too."""
        if len(self._roster.workers) < 2:
            return
        for task in list(self._pool.held.values()):
            worker = self._roster.workers[task.worker]
            if worker.is_late(HELD * task.num_positions, now_s - task.handed_s):
                self._decisions.say(f"{task.worker} is late with task {task.number}; another worker does it too")
                self._late.add(task.worker)
                self._pool.clocks.pop(task.worker, None)  # nobody waits for it
                self._pool.take_back(task.number)

    def advance(self, now_s: float, pause: Pause) -> None:
        """Give every worker what it may hold, the emptiest first."""
        if self._pool.is_finished:
            self.wish = self.wish or Finish()
            return
        if not self._roster.may_begin(now_s):
            return
        workers = [worker for worker in self._roster.by_name if worker.name not in self._late]
        sizes = self._sizes(workers)
        holds = {worker.name: self._pool.held_by(worker.name) for worker in workers}
        given = True
        while given:
            given = False
            for worker in sorted(workers, key=lambda worker: holds[worker.name]):
                name = worker.name
                may = holds[name] < HELD and self._pool.may_begin(name, self._staleness)
                if may and self._give(worker, sizes[name], now_s, pause):
                    holds[name] += 1
                    given = True

    def _sizes(self, workers: list[Worker]) -> dict[str, int]:
        """Return the samples of each worker's tasks: a batch; in ssp more for the fast, so that nobody gets ahead."""
        if not self._bounded or not self._balance or len(workers) < 2:
            return {worker.name: min(self._batch, worker.most_samples or self._batch) for worker in workers}
        shares = shares_of(workers, balance=True)
        return {name: max(1, samples) for name, samples in split(self._batch * len(workers), shares).items()}

    def _give(self, worker: Worker, samples: int, now_s: float, pause: Pause) -> bool:
        """Hand out a task; while a checkpoint is wanted, only those that were handed out before."""
        is_new = not self._pool.returned
        if is_new and pause is not Pause.NONE:
            return False
        task = self._pool.take(worker.name, samples, now_s)
        if task is None:
            return False
        if is_new:
            self._decisions.write(task=task.line)
        epoch, first = divmod(task.first, self._pool.samples)
        clock, slowest = self._pool.clocks_of(worker.name)
        self._decisions.send(
            worker,
            Assign(
                generation=self._roster.generation,
                step=0,
                task=task.number,
                epoch=epoch,
                ranges=((first, first + task.num_positions),),
                is_open=False,
                factor=self._schedule(self.step),
                clock=clock,
                slowest=slowest,
            ),
        )
        return True

    # -- messages ------------------------------------------------------------------------------------------------------

    def handle(self, member: Member, message: Message, now_s: float) -> None:
        """Take in that a server has applied a task, or that a worker goes on."""
        if isinstance(message, Done) and member.name in self._roster.workers:
            self._late.discard(member.name)
            self._pool.join(member.name)
        elif isinstance(message, Accepted):
            task = self._pool.accept(message.name, message.task, self._roster.num_servers)
            if task is not None:
                self._decisions.write(done=task.number)
                self.step += 1
                self._decisions.count(Counted(step=self.step, samples=message.samples, loss=message.loss))
