"""Work in `sync`: steps one after the other, the next one handed out while the last is being finished."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from dovetail.models.schedules import make_schedule
from dovetail.runtime.checkpoint import RunCheckpoint
from dovetail.runtime.coordinator.journal import CommitLine, Past, Start
from dovetail.runtime.coordinator.members import Member, Worker, shares_of
from dovetail.runtime.coordinator.ring import RingMembers
from dovetail.runtime.coordinator.steps import Step, StepTask
from dovetail.runtime.dense.clipping import clipped_scale
from dovetail.runtime.dispatch import grant, plan_step, seconds_left
from dovetail.runtime.messages import (
    Accepted,
    Apply,
    Assign,
    Close,
    Commit,
    Committed,
    Done,
    Extend,
    Message,
    More,
    Norm,
    NormIs,
    RanOut,
    Recall,
    SaveDense,
)

if TYPE_CHECKING:
    from dovetail.runtime.coordinator.loop import Coordinator

REPEAT_S = 2.0
"""How long a server may take to apply a step before it is told again: a connection may have broken meanwhile."""


AROUND = 2.0
"""How many times what a worker takes to fetch a piece it takes around computing it: to fetch, and to send."""
LEAD = 1.5
"""How many times what a worker takes to get new work ready it is answered before it needs it."""
LEAST_LEAD_S = 0.004


class SyncWork:
    """Cuts global batches, and commits each when every server has all of it."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Start at the beginning."""
        self._coordinator = coordinator
        blueprint = coordinator.blueprint
        self._training, self._num_servers = blueprint.run.training, blueprint.num_servers
        self._samples, self._batch = blueprint.samples, blueprint.batch
        self._total = blueprint.samples * blueprint.run.training.epochs
        schedule = blueprint.run.optimizer.schedule
        self._schedule = make_schedule(schedule.name, **schedule.settings())
        self._clip_norm = blueprint.run.optimizer.clip_norm
        self.step = 0
        self.position = 0
        self._next_position = 0
        self._steps: dict[int, Step] = {}
        self._asking: list[tuple[float, Worker, More]] = []
        self._idle: set[str] = set()
        self._told: tuple[Commit, float] | None = None
        """The last commit, and when the servers were told."""
        self._ring = RingMembers(coordinator) if self._training.dense == "ring" else None

    # -- where it stands -----------------------------------------------------------------------------------------------

    def start(self, manifest: RunCheckpoint) -> None:
        """Stand where a checkpoint stands."""
        self._stand(manifest.step, manifest.position)
        if self._ring is not None:
            self._ring.forget()

    def go_on(self, past: Past) -> None:
        """Stand where the journal ends."""
        step = past.commit.step + 1 if past.commit is not None else past.start.step
        self._coordinator.samples_done = past.position
        self._stand(step, past.position)

    def _stand(self, step: int, position: int) -> None:
        """Forget what is under way."""
        self.step, self.position, self._next_position = step, position, position
        self._steps.clear()
        self._asking.clear()
        self._idle.clear()

    def past(self) -> Past:
        """Return where it stands, with what is under way thrown away; a commit that was decided stands."""
        start = self.as_start()
        step = self._steps.get(self.step)
        if step is not None and step.committed is not None:
            position = self.position + step.num_positions
            start = msgspec.structs.replace(start, step=self.step + 1, position=position)
        return Past(start=start, position=start.position)

    def as_start(self) -> Start:
        """Return where it stands, for the journal."""
        return Start(
            generation=self._coordinator.generation,
            step=self.step,
            position=self.position,
            samples_done=self._coordinator.samples_done,
        )

    def manifest(self, *, files: dict[str, str]) -> RunCheckpoint:
        """Return the manifest of a checkpoint cut now."""
        return RunCheckpoint(
            step=self.step,
            position=self.position,
            dense_steps=self.step,
            num_servers=self._num_servers,
            samples=self._samples,
            files=files,
        )

    # -- handing out ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Hand out work to everyone."""
        if self.position >= self._total:
            if self._ring is not None:
                self._ring.dissolve()
            self._coordinator.finish()
            return
        self._idle.update(self._coordinator.workers)
        if self._ring is not None:
            self._ring.dissolve()
            self._form_ring(self._ring)
        self._advance_idle()

    def _form_ring(self, ring: RingMembers) -> None:
        """Have the workers form a ring once they are there."""
        if not ring.members and self._coordinator.workers and self._coordinator.may_begin():
            ring.form(self._coordinator.checkpoint_folder)

    def join(self, worker: Worker) -> None:
        """Hand out work to a worker that came later."""
        if self._ring is not None and self._ring.members:
            self._coordinator.restart_generation(f"{worker.name} joins the ring; the step under way begins again")
            return
        self._idle.add(worker.name)
        self._advance_idle()

    def drop(self, name: str) -> None:
        """Have others do what a lost worker held."""
        self._idle.discard(name)
        if self._ring is not None:
            self._drop_from_ring(self._ring, name)
            return
        for step in self._steps.values():
            step.drop_worker(name, self._num_servers)
        self._rescue()
        self._try_commit()

    def _drop_from_ring(self, ring: RingMembers, name: str) -> None:
        """Go on with a ring of those who are left; where none of them holds the dense parameters, go back."""
        ring.dissolve()
        ring.drop(name)
        if ring.is_lost:
            self._coordinator.go_back("no worker is left that holds the dense parameters")
        else:
            self._coordinator.restart_generation(f"the ring goes on without {name}; the step under way begins again")

    def look(self, now_s: float) -> None:
        """Begin where the first workers are there; have late tasks done by others too."""
        if self._ring is not None:
            self._form_ring(self._ring)
            self._ring.look(now_s)
        self._advance_idle()
        self._repeat_commit(now_s)
        step = self._steps.get(self.step)
        if step is None or len(self._coordinator.workers) < 2 or self._ring is not None:
            return
        for task in step.open_tasks(self._num_servers):
            worker = self._coordinator.workers.get(task.worker)
            if worker is None or task.doubled:
                continue
            expected_s = worker.speed.seconds(task.num_positions)
            begun_s = max(task.handed_s, step.begun_s)
            if expected_s is not None and now_s - begun_s > expected_s + worker.lateness.limit_s:
                task.doubled, task.is_open = True, False
                step.orphans.append(task)
                self._coordinator.say(
                    f"{task.worker} is late with step {step.number} ({now_s - begun_s:.1f} s instead of "
                    f"{expected_s:.1f} s); another worker does its task too"
                )
                self._rescue()

    def _repeat_commit(self, now_s: float) -> None:
        """Tell servers again of a commit that they have not confirmed; none applies it twice."""
        step = self._steps.get(self.step)
        if step is None or step.committed is None or self._told is None or now_s - self._told[1] < REPEAT_S:
            return
        self._told = (self._told[0], now_s)
        for server in self._coordinator.servers.values():
            if server.name not in step.committed:
                self._coordinator.send(server, self._told[0])

    def _advance_idle(self) -> None:
        """Hand out work to all who have none."""
        for name in sorted(self._idle):
            worker = self._coordinator.workers.get(name)
            if worker is None:
                self._idle.discard(name)
            elif self._coordinator.may_begin() and (self._ring is None or self._ring.is_formed):
                self._advance(worker)

    def _advance(self, worker: Worker) -> None:
        """Hand out tasks until the worker has an open one, or one of the next step."""
        self._idle.discard(worker.name)
        while True:
            for number in (self.step, self.step + 1):
                step = self._planned(number)
                if step is None or worker.at_step > number:
                    continue
                task = self._next_task(step, worker)
                if task is not None:
                    break
            else:
                self._idle.add(worker.name)
                return
            self._assign(worker, step, task)
            if task.is_open or number > self.step:
                return

    def _assign(self, worker: Worker, step: Step, task: StepTask) -> None:
        """Send a task."""
        worker.at_step = max(worker.at_step, step.number) if task.worker == worker.name else worker.at_step
        self._coordinator.send(
            worker,
            Assign(
                generation=self._coordinator.generation,
                step=step.number,
                task=task.number,
                epoch=step.epoch,
                ranges=tuple(task.ranges),
                is_open=task.is_open,
            ),
        )

    def _planned(self, number: int) -> Step | None:
        """Return a step, cut now where it is not yet; None where there are no more, or a checkpoint comes first."""
        if number in self._steps:
            return self._steps[number]
        if self._next_position >= self._total or not self._coordinator.workers:
            return None
        epoch, first = divmod(self._next_position, self._samples)
        last = min(self._samples, first + self._batch)
        workers = sorted(self._coordinator.workers.values(), key=lambda worker: worker.name)
        shares = shares_of(workers, balance=self._training.balance)
        plan = plan_step(last - first, shares, tail=self._training.tail if self._training.balance else 0.0)
        step = Step.cut(
            number,
            epoch=epoch,
            first=first,
            last=last,
            plan=plan,
            now_s=time.monotonic(),
            everyone=self._ring is not None,
        )
        self._steps[number] = step
        self._next_position += last - first
        return step

    def _next_task(self, step: Step, worker: Worker) -> StepTask | None:
        """Return what a free worker does next in a step: its own task, a lost worker's, or some of the tail."""
        now_s = time.monotonic()
        task = step.task_for(worker.name, self._num_servers, now_s)
        if task is None and step.tail_left and worker.at_step < step.number:
            samples = self._grant(step, worker, now_s)
            task = step.new_tail_task(worker.name, samples, now_s) if samples else None
        return task

    def _grant(self, step: Step, worker: Worker, now_s: float, fetch_s: float = 0.0) -> int:
        """Return how much of the tail a worker takes now; `fetch_s` is what it takes to get a piece ready."""
        if not step.tail_left:
            return 0
        workers = self._coordinator.workers
        shares = {share.name: share for share in shares_of(list(workers.values()), balance=self._training.balance)}
        others = []
        for task in step.open_tasks(self._num_servers):
            other = workers.get(task.worker)
            if other is None or other.name == worker.name or not task.is_open:
                continue
            expected_s = other.speed.seconds(task.num_positions) or math.inf
            busy_s = max(0.0, max(task.handed_s, step.begun_s) + expected_s - now_s)
            others.append((shares[other.name], busy_s))
        if any(math.isinf(busy_s) for _, busy_s in others):
            left_s = math.inf
        else:
            left_s = seconds_left(step.tail_left, others) if others else math.inf
        share = shares[worker.name]
        fixed_s = share.fixed_s if share.piece_fixed_s is None else share.piece_fixed_s
        share = replace(share, piece_fixed_s=fixed_s + AROUND * fetch_s)
        return grant(share, step.tail_left, left_s, step_s=step.plan.step_s)

    def _rescue(self) -> None:
        """Have tasks of lost workers done: by who is free, by who asks next, or by who waits for the next step."""
        self._advance_idle()
        step = self._steps.get(self.step)
        if step is None or self._ring is not None or any(task.is_open for task in step.open_tasks(self._num_servers)):
            return
        if step.tail_left and not step.planned:
            step.orphan_tail(time.monotonic())
        if not step.orphans:
            return
        following = self._steps.get(self.step + 1)
        waiting = [task for task in following.tasks.values() if task not in following.orphans] if following else []
        waiting = [task for task in waiting if task.worker in self._coordinator.workers]
        if following is None or not waiting:
            return
        task = max(waiting, key=lambda task: self._speed(task.worker))
        worker = self._coordinator.workers[task.worker]
        del following.tasks[task.number]
        following.planned[worker.name] = task
        worker.at_step = step.number
        self._coordinator.send(
            worker, Recall(generation=self._coordinator.generation, step=following.number, task=task.number)
        )
        self._advance(worker)
        if step.orphans:
            self._rescue()

    def _speed(self, name: str) -> float:
        """Return a worker's samples per second, 0 where it is not known."""
        worker = self._coordinator.workers.get(name)
        return (worker.speed.samples_per_s or 0.0) if worker is not None else 0.0

    # -- messages ------------------------------------------------------------------------------------------------------

    def heed(self, member: Member, message: Message) -> None:
        """Act on a message of a worker or server."""
        if isinstance(message, Accepted):
            self._accepted(message)
        elif self._ring is not None and self._ring.heed(message):
            self._advance_idle()
            self._try_commit()
            if self._coordinator.checkpoint_due(self.step):
                self.pause()
        elif isinstance(message, More) and isinstance(member, Worker):
            self._more(member, message)
        elif isinstance(message, RanOut) and isinstance(member, Worker):
            self._ran_out(member)
        elif isinstance(message, Committed):
            self._committed(message)
        elif isinstance(message, NormIs):
            self._norm_is(message)
        elif isinstance(message, Done) and isinstance(member, Worker):
            step = self._steps.get(message.step)
            expected_s = member.speed.seconds(message.samples)
            if step is not None and expected_s is not None:
                member.lateness.add(max(0.0, message.compute_s + message.fixed_s - expected_s))

    def _more(self, worker: Worker, message: More) -> None:
        """Answer who is about to run out of work as late as that is in time: then it shows who is fast in this step."""
        step = self._steps.get(message.step)
        early_s = message.busy_s - LEAD * message.fetch_s - LEAST_LEAD_S
        if step is None or not step.tail_left or early_s <= 0:
            self._answer(worker, message)
        else:
            self._asking.append((time.monotonic() + early_s, worker, message))

    def _ran_out(self, worker: Worker) -> None:
        """Answer at once who ran out of work sooner than was thought."""
        for entry in [entry for entry in self._asking if entry[1] is worker]:
            self._asking.remove(entry)
            self._answer(worker, entry[2])

    def seconds_to_wait(self) -> float:
        """Return when the next one has to be answered."""
        if not self._asking:
            return math.inf
        return max(0.0, min(due_s for due_s, _, _ in self._asking) - time.monotonic())

    def answer_due(self) -> None:
        """Answer those whose time has come, and those for whom nothing is left to wait for."""
        if not self._asking:
            return
        now_s, asking = time.monotonic(), self._asking
        self._asking = []
        for due_s, worker, message in sorted(asking, key=lambda each: each[0]):
            step = self._steps.get(message.step)
            if worker is not self._coordinator.workers.get(worker.name):
                continue
            if due_s > now_s and step is not None and step.tail_left:
                self._asking.append((due_s, worker, message))
            else:
                self._answer(worker, message)

    def _answer(self, worker: Worker, message: More) -> None:
        """Give a worker a piece of the tail, or the next task."""
        step = self._steps.get(message.step)
        task = step.tasks.get(message.task) if step is not None else None
        generation = self._coordinator.generation
        if step is not None and task is not None and task.worker == worker.name and not task.doubled:
            samples = self._grant(step, worker, time.monotonic(), message.fetch_s)
            if samples:
                first, last = step.extend(task, samples)
                self._coordinator.send(
                    worker,
                    Extend(generation=generation, step=step.number, task=task.number, first=first, last=last),
                )
                return
            task.is_open = False
        self._coordinator.send(worker, Close(generation=generation, step=message.step, task=message.task))
        self._advance(worker)

    def _accepted(self, message: Accepted) -> None:
        """Note that a server has a task."""
        step = self._steps.get(message.step)
        if step is not None:
            step.accept(message.name, message.task, message.samples, message.loss)
            self._try_commit()

    def _try_commit(self) -> None:
        """Commit the step where every server has all of it."""
        step = self._steps.get(self.step)
        if step is None or step.committed is not None or not step.is_whole(self._num_servers):
            return
        if self._coordinator.stops_after_save:
            return  # the last checkpoint is being written: what comes after it would be lost
        if self._ring is not None and not self._ring.has_reduced:
            return
        clips = self._clip_norm if self._ring is None else None  # members of a ring hold the whole gradient
        if clips is not None and len(step.norms) < self._num_servers:
            self._coordinator.send_servers(Norm(generation=self._coordinator.generation, step=step.number))
            return
        scale = 1.0 / max(1, step.samples) if self._training.reduction == "mean" else 1.0
        dense_scale = scale
        if clips is not None:
            dense_scale = clipped_scale(scale, sum(step.norms.values()), clips)
        self._commit(step, scale, dense_scale)

    def _norm_is(self, message: NormIs) -> None:
        """Note a server's part of the gradient's norm."""
        step = self._steps.get(message.step)
        if step is not None and step.committed is None:
            step.norms[message.name] = message.square
            if len(step.norms) >= self._num_servers:
                self._try_commit()

    def _commit(self, step: Step, scale: float, dense_scale: float) -> None:
        """Decide that a step counts: first in the journal, then everywhere."""
        factor = self._schedule(step.number)
        position = self.position + step.num_positions
        self._coordinator.journal.write(
            commit=CommitLine(step=step.number, position=position, scale=scale, dense_scale=dense_scale, factor=factor)
        )
        step.committed = set()
        commit = Commit(
            generation=self._coordinator.generation,
            step=step.number,
            scale=scale,
            dense_scale=dense_scale,
            factor=factor,
        )
        self._told = (commit, time.monotonic())
        self._coordinator.send_servers(commit)
        if self._ring is not None:
            self._ring.reduced.clear()
            apply = Apply(generation=self._coordinator.generation, step=step.number, scale=dense_scale, factor=factor)
            for name in self._ring.members:
                if name in self._coordinator.workers:
                    self._coordinator.send(self._coordinator.workers[name], apply)

    def save_dense(self, folder: str) -> None:
        """Have a member of the ring write the dense parameters."""
        if self._ring is not None and self._ring.members:
            worker = self._coordinator.workers[self._ring.members[0]]
            self._coordinator.send(
                worker, SaveDense(generation=self._coordinator.generation, step=self.step, folder=folder)
            )

    def _committed(self, message: Committed) -> None:
        """Go on to the next step once every server has applied this one."""
        step = self._steps.get(message.step)
        if step is None or step.committed is None:
            return
        step.committed.add(message.name)
        if len(step.committed) < self._num_servers:
            return
        del self._steps[message.step]
        self.step += 1
        self.position += step.num_positions
        self._coordinator.samples_done = self.position
        self._coordinator.metrics.add_step(step.samples, step.loss)
        self._coordinator.metrics.add_shares(step.number, time.monotonic() - step.begun_s, step.samples_by_worker)
        following = self._steps.get(self.step)
        if following is not None:
            following.begun_s = time.monotonic()
        if self.position >= self._total:
            self._coordinator.finish()
            return
        if self._coordinator.checkpoint_due(self.step):
            self._coordinator.cut()
        self._advance_closed(following)
        self._advance_idle()
        self._rescue()

    def _advance_closed(self, step: Step | None) -> None:
        """Hand out the step after `step` to those who will not ask for more of it."""
        if step is None:
            return
        asking = {task.worker for task in step.tasks.values() if task.is_open}
        for worker in list(self._coordinator.workers.values()):
            if worker.at_step == step.number and worker.name not in asking and worker.name not in self._idle:
                self._advance(worker)

    def pause(self) -> None:
        """Cut a checkpoint now, unless a commit is on its way: then after it."""
        if self._ring is not None and not self._ring.is_formed:
            return  # nobody could write the dense parameters
        step = self._steps.get(self.step)
        if step is None or step.committed is None:  # servers keep gradients of a step under way apart
            self._coordinator.cut()
