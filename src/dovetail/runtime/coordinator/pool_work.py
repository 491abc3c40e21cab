"""Work in `ssp` and `async`: tasks from one pool, each applied by the servers as it comes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from dovetail.models.schedules import make_schedule
from dovetail.runtime.checkpoint import RunCheckpoint
from dovetail.runtime.coordinator.journal import Past, Start
from dovetail.runtime.coordinator.members import Member, Worker, shares_of
from dovetail.runtime.coordinator.pool import PoolTask, TaskPool
from dovetail.runtime.dispatch import split
from dovetail.runtime.messages import Accepted, Assign, Message

if TYPE_CHECKING:
    from dovetail.runtime.coordinator.loop import Coordinator

HELD = 2
"""Tasks that a worker holds: one it computes, and one whose parameters are on their way."""


class PoolWork:
    """Keeps every worker supplied; in `ssp` none gets too far ahead of the slowest."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Start at the beginning."""
        self._coordinator = coordinator
        blueprint = coordinator.blueprint
        training = blueprint.run.training
        self._num_servers, self._batch = blueprint.num_servers, blueprint.batch
        self._bounded = training.mode == "ssp"
        self._staleness = training.staleness if self._bounded else None
        self._balance = training.balance
        schedule = blueprint.run.optimizer.schedule
        self._schedule = make_schedule(schedule.name, **schedule.settings())
        self._pool = TaskPool(blueprint.samples, training.epochs)
        self.step = 0
        self._draining = False

    @property
    def position(self) -> int:
        """Return the first position that was not handed out."""
        return self._pool.position

    @position.setter
    def position(self, value: int) -> None:
        """Go on from a position."""
        self._pool.position = value

    # -- where it stands -----------------------------------------------------------------------------------------------

    def start(self, manifest: RunCheckpoint) -> None:
        """Stand where a checkpoint stands."""
        self._stand(manifest.step, manifest.position)
        for first, last in manifest.gaps:
            self._pool.add_gap(first, last)

    def go_on(self, past: Past) -> None:
        """Stand where the journal ends; tasks that are not done go out again under their numbers."""
        self._stand(past.start.step, past.position)
        self._pool.next_number = past.next_task
        for number, epoch, first, last in past.tasks.values():
            self._pool.returned.append(PoolTask(number, epoch, first, last))
        for _, epoch, _, last in past.made:
            self._pool.position = max(self._pool.position, epoch * self._pool.samples + last)
        under_way = sum(last - first for _, _, first, last in past.tasks.values())
        self._coordinator.samples_done = self._pool.position - under_way
        applied = min((server.version for server in self._coordinator.servers.values()), default=self.step)
        self.step = max(self.step, applied)

    def _stand(self, step: int, position: int) -> None:
        """Forget what is under way."""
        self._pool = TaskPool(self._pool.samples, self._pool.epochs, position=position)
        self.step = step
        self._draining = False

    def past(self) -> Past:
        """Return where it stands, with what is under way to be handed out again."""
        tasks = [*self._pool.held.values(), *self._pool.returned]
        return Past(
            start=self.as_start(),
            position=self._pool.position,
            next_task=self._pool.next_number,
            tasks={task.number: (task.number, task.epoch, task.first, task.last) for task in tasks},
        )

    def as_start(self) -> Start:
        """Return where it stands, for the journal."""
        tasks = [*self._pool.held.values(), *self._pool.returned]
        return Start(
            generation=self._coordinator.generation,
            step=self.step,
            position=self._pool.position,
            next_task=self._pool.next_number,
            tasks=tuple((task.number, task.epoch, task.first, task.last) for task in tasks),
            samples_done=self._coordinator.samples_done,
        )

    def save_dense(self, folder: str) -> None:
        """Do nothing: the servers keep all parameters."""

    def manifest(self, *, files: dict[str, str]) -> RunCheckpoint:
        """Return the manifest of a checkpoint cut now: nothing is under way."""
        return RunCheckpoint(
            step=self.step,
            position=self._pool.position,
            dense_steps=self.step,
            num_servers=self._num_servers,
            samples=self._pool.samples,
            files=files,
        )

    # -- handing out ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Hand out work to everyone."""
        for worker in self._coordinator.workers.values():
            self._pool.join(worker.name)
        self._supply()

    def join(self, worker: Worker) -> None:
        """Hand out work to a worker that came later."""
        self._pool.join(worker.name)
        self._supply()

    def drop(self, name: str) -> None:
        """Hand out again what a lost worker held."""
        self._pool.drop_worker(name)
        self._supply()

    def seconds_to_wait(self) -> float:
        """Return that nobody is kept waiting."""
        return math.inf

    def answer_due(self) -> None:
        """Answer nobody: nobody is kept waiting."""

    def look(self, now_s: float) -> None:
        """Hand out work once the first workers are there; take back tasks that are far too late."""
        self._supply()
        if len(self._coordinator.workers) < 2:
            return
        for task in list(self._pool.held.values()):
            worker = self._coordinator.workers.get(task.worker)
            expected_s = worker.speed.seconds(HELD * (task.last - task.first)) if worker is not None else None
            if worker is None or expected_s is None:
                continue
            if now_s - task.handed_s > HELD * expected_s + worker.lateness.limit_s:
                self._coordinator.say(f"{task.worker} is late with task {task.number}; another worker does it too")
                self._pool.held.pop(task.number)
                worker.held = [number for number in worker.held if number != task.number]
                self._pool.returned.append(task)

    def _supply(self) -> None:
        """Give every worker what it may hold, the emptiest first."""
        if self._pool.is_finished and self._coordinator.state == "running":
            self._coordinator.finish()
            return
        if not self._coordinator.may_begin():
            return
        sizes = self._sizes()
        given = True
        while given:
            given = False
            for worker in sorted(self._coordinator.workers.values(), key=lambda worker: len(worker.held)):
                if len(worker.held) < HELD and self._pool.may_begin(worker.name, self._staleness):
                    given = self._give(worker, sizes[worker.name]) or given

    def _sizes(self) -> dict[str, int]:
        """Return the samples of each worker's tasks: a batch; in ssp more for the fast, so that nobody gets ahead."""
        workers = sorted(self._coordinator.workers.values(), key=lambda worker: worker.name)
        if not self._bounded or not self._balance or len(workers) < 2:
            return {worker.name: min(self._batch, worker.most_samples or self._batch) for worker in workers}
        shares = shares_of(workers, balance=True)
        return {name: max(1, samples) for name, samples in split(self._batch * len(workers), shares).items()}

    def _give(self, worker: Worker, samples: int) -> bool:
        """Hand out a task; while a checkpoint is to be cut, only those that were handed out before."""
        if (self._draining or self._coordinator.stops_after_save) and not self._pool.returned:
            return False
        is_new = not self._pool.returned
        task = self._pool.take(worker.name, samples, time.monotonic())
        if task is None:
            return False
        if is_new:
            self._coordinator.journal.write(task=(task.number, task.epoch, task.first, task.last))
        worker.held.append(task.number)
        self._coordinator.send(
            worker,
            Assign(
                generation=self._coordinator.generation,
                step=0,
                task=task.number,
                epoch=task.epoch,
                ranges=((task.first, task.last),),
                is_open=False,
                factor=self._schedule(self.step),
            ),
        )
        return True

    # -- messages ------------------------------------------------------------------------------------------------------

    def heed(self, member: Member, message: Message) -> None:
        """Act on a message of a server: a task is applied."""
        if not isinstance(message, Accepted):
            return
        task = self._pool.accept(message.name, message.task, self._num_servers)
        if task is None:
            return
        self._coordinator.journal.write(done=task.number)
        worker = self._coordinator.workers.get(task.worker)
        if worker is not None:
            worker.held = [number for number in worker.held if number != task.number]
        self.step += 1
        self._coordinator.samples_done += task.last - task.first
        self._coordinator.metrics.add_step(message.samples, message.loss)
        if self._coordinator.checkpoint_due(self.step):
            self._draining = True
        self._cut_when_drained()
        self._supply()

    def pause(self) -> None:
        """Come to rest, so that a checkpoint can be cut."""
        self._draining = True
        self._cut_when_drained()

    def _cut_when_drained(self) -> None:
        """Cut the checkpoint once no task is under way."""
        if self._draining and not self._pool.held and not self._pool.returned:
            self._draining = False
            self._coordinator.cut()
