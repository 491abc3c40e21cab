"""Work in `ssp` and `async`: tasks from one pool, each applied by the servers as it comes."""

from __future__ import annotations

import math

from dovetail.models.schedules import make_schedule
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import Manifest
from dovetail.runtime.coordinator.decisions import Counted, Decisions
from dovetail.runtime.coordinator.journal import CommitLine, Past, Start
from dovetail.runtime.coordinator.members import Member, Worker, shares_of
from dovetail.runtime.coordinator.pool import TaskPool
from dovetail.runtime.coordinator.roster import Roster
from dovetail.runtime.coordinator.work import Finish, Pause, Wish
from dovetail.runtime.dispatch import split
from dovetail.runtime.messages import Accepted, Assign, Done, Message

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
        self.pause = Pause.NONE
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

    def start(self, manifest: Manifest) -> None:
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

    def as_start(self) -> Start:
        """Return where it stands, for the journal."""
        return Start(
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

    def manifest(self) -> Manifest:
        """Return the manifest of a checkpoint of how things are now: nothing is under way."""
        return Manifest(
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

    def advance(self, now_s: float) -> None:
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
                if may and self._give(worker, sizes[name], now_s):
                    holds[name] += 1
                    given = True

    def _sizes(self, workers: list[Worker]) -> dict[str, int]:
        """Return the samples of each worker's tasks: a batch; in ssp more for the fast, so that nobody gets ahead."""
        if not self._bounded or not self._balance or len(workers) < 2:
            return {worker.name: min(self._batch, worker.most_samples or self._batch) for worker in workers}
        shares = shares_of(workers, balance=True)
        return {name: max(1, samples) for name, samples in split(self._batch * len(workers), shares).items()}

    def _give(self, worker: Worker, samples: int, now_s: float) -> bool:
        """Hand out a task; while a checkpoint is wanted, only those that were handed out before."""
        is_new = not self._pool.returned
        if is_new and self.pause is not Pause.NONE:
            return False
        task = self._pool.take(worker.name, samples, now_s)
        if task is None:
            return False
        if is_new:
            self._decisions.write(task=task.line)
        epoch, first = divmod(task.first, self._pool.samples)
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
                **self._pool.clocks_of(worker.name),
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
