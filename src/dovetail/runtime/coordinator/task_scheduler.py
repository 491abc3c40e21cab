"""The task scheduler of `sync`: who computes what of a step and the one after it, and work stealing at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.membership import Roster, Worker, shares_of
from dovetail.runtime.coordinator.steps import Step, StepTask
from dovetail.runtime.dispatch import grant, plan_step, with_floor
from dovetail.runtime.messages import Assign, Close, Extend, GaveBack, GiveBack, MaskKey, More, Recall

LEAD = 1.5
"""How many times what a worker takes to get new work ready it is answered before it needs it."""
LEAST_LEAD_S = 0.004


@dataclass(frozen=True, slots=True)
class PendingAsk:
    """A worker that asked for more, and when it has to be answered."""

    due_s: float
    worker: Worker
    more: More


AROUND = 2.0
"""How many times what a worker takes to fetch a piece it takes around computing it: to fetch, and to send."""
WORTH = 2.0
"""How many times what it costs to take something over its worker must still have to do."""


class AskedBack(NamedTuple):
    """What a worker was asked to give back, and for whom."""

    step: int
    task: int
    taker: Worker
    more: More


class TaskScheduler:
    """Divides global batches into steps, and steps into tasks."""

    def __init__(
        self, blueprint: Blueprint, roster: Roster, decisions: Decisions, *, everyone: bool, fewest: int = 1
    ) -> None:
        """Start with nothing handed out; `everyone` takes part in every step in a ring, and nobody for another.

        With fewer workers than `fewest` no step begins.
        """
        self._roster, self._decisions, self._fewest = roster, decisions, fewest
        self._is_masked = blueprint.run.privacy.aggregation == "masked"
        self._training, self._everyone = blueprint.run.training, everyone
        self._samples, self._batch = blueprint.samples, blueprint.batch
        self.total = blueprint.samples * blueprint.run.training.epochs
        self.step = 0
        """The step that is to count next."""
        self._until_step = math.inf if blueprint.private is None else blueprint.private.until_step
        """Steps that a privacy budget lasts for."""
        self._next_position = 0
        self._steps: dict[int, Step] = {}
        self._asking: list[PendingAsk] = []
        """Who asked for more of a step, and is answered as late as is in time: then it shows who is fast in it."""
        self._asked_back: dict[str, AskedBack] = {}
        """Workers that were asked to give back what they have not begun."""
        self._idle: set[str] = set()
        self._at_step: dict[str, int] = {}
        """The last step that each worker that takes part was given a task of."""
        self._late: set[str] = set()
        """Workers whose tasks were given to others: they get no more until they show that they go on."""

    def stand(self, step: int, position: int) -> None:
        """Forget what is under way, and go on from a step."""
        self.step, self._next_position = step, position
        self._steps.clear()
        self._asking.clear()
        self._asked_back.clear()
        self._idle.clear()
        self._at_step.clear()
        self._late.clear()

    @property
    def current(self) -> Step | None:
        """Return the step that is to count next, where it is handed out."""
        return self._steps.get(self.step)

    def step_of(self, number: int) -> Step | None:
        """Return a step that is handed out."""
        return self._steps.get(number)

    @property
    def is_over(self) -> bool:
        """Say whether there are no steps after those that count."""
        return self.step >= self._until_step

    def next_step(self, now_s: float) -> None:
        """Go on to the next step: the current one counts, everywhere."""
        del self._steps[self.step]
        self.step += 1
        following = self.current
        if following is not None:
            following.begun_s = now_s
            self._advance_closed(following, now_s)

    @property
    def _workers(self) -> list[Worker]:
        """Return the workers that take part, in the order of their names."""
        return [worker for worker in self._roster.by_name if worker.name in self._at_step]

    # -- workers -------------------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """Take in a worker."""
        self._idle.add(name)
        self._at_step[name] = self.step - 1

    def drop(self, name: str) -> bool:
        """Have others do what a lost worker held; False where servers have something else of it than was thought."""
        self._idle.discard(name)
        self._late.discard(name)
        self._asking = [each for each in self._asking if each.worker.name != name]
        self._ask_elsewhere(name)
        are_well = [step.drop_worker(name, self._roster.num_servers) for step in self._steps.values()]
        return all(are_well)

    def goes_on(self, name: str) -> None:
        """Note that a worker has done something."""
        self._late.discard(name)

    def find_late(self, now_s: float) -> None:
        """Have tasks of the current step that are late done by others too."""
        step = self.current
        if step is None or self._everyone or len(self._roster.workers) < 2:
            return
        for task in step.open_tasks(self._roster.num_servers):
            worker = self._roster.workers.get(task.worker)
            waited_s = now_s - max(task.handed_s, step.begun_s)
            if worker is None or task.doubled or task.early or not worker.is_late(task.num_positions, waited_s):
                continue
            task.doubled, task.is_open = True, False
            task.is_asked_back = False  # should it still give something back, the step begins again
            self._ask_elsewhere(task.worker)
            self._late.add(task.worker)
            step.orphans.append(task)
            self._decisions.say(
                f"{task.worker} is late with step {step.number} ({waited_s:.1f} s so far); "
                "another worker does its task too"
            )

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Hand out work to all who have none, and find someone for tasks of lost workers."""
        if not self._roster.may_begin(now_s):
            return
        for name in sorted(self._idle - self._late):
            worker = self._roster.workers.get(name)
            if worker is None:
                self._idle.discard(name)
            else:
                self._advance_worker(worker, now_s)
        while self._rescue(now_s):
            pass

    def _advance_worker(self, worker: Worker, now_s: float) -> None:
        """Hand out tasks until the worker has an open one, or one of the next step."""
        self._idle.discard(worker.name)
        while True:
            for number in (self.step, self.step + 1):
                step = self._planned(number, now_s)
                if step is None or self._at_step[worker.name] > number:
                    continue
                task = self._next_task(step, worker, now_s)
                if task is not None:
                    break
            else:
                self._idle.add(worker.name)
                return
            self._assign(worker, step, task)
            if task.is_open or number > self.step:
                return

    def _advance_closed(self, step: Step, now_s: float) -> None:
        """Hand out the step after `step` to those who will not ask for more of it.

        A lost worker's task counts for nobody: one that came back under its name knows nothing of it.
        """
        asking = {task.worker for task in step.tasks.values() if task.is_open and task not in step.orphans}
        for worker in self._workers:
            name = worker.name
            if self._at_step[name] == step.number and name not in asking and name not in self._idle:
                self._advance_worker(worker, now_s)

    def _assign(self, worker: Worker, step: Step, task: StepTask) -> None:
        self._at_step[worker.name] = max(self._at_step[worker.name], step.number)
        self._decisions.send(
            worker,
            Assign(
                generation=self._roster.generation,
                step=step.number,
                task=task.number,
                epoch=step.epoch,
                ranges=tuple(task.ranges),
                is_open=task.is_open,
                batch=step.num_positions,
                masks=step.masks,
            ),
        )

    def _planned(self, number: int, now_s: float) -> Step | None:
        """Return a step, divided now where it is not yet; None where there are no more."""
        if number in self._steps:
            return self._steps[number]
        workers = [worker for worker in self._workers if worker.name not in self._late]
        if self._next_position >= self.total or number >= self._until_step or len(workers) < self._fewest:
            return None
        epoch, first = divmod(self._next_position, self._samples)
        last = min(self._samples, first + self._batch)
        shares = shares_of(workers, balance=self._training.balance)
        plan = plan_step(last - first, shares, tail=self._training.tail if self._training.balance else 0.0)
        if self._is_masked:
            plan = replace(plan, main=with_floor(plan.main))
        step = Step.divided(
            number, epoch=epoch, first=first, last=last, plan=plan, now_s=now_s, everyone=self._everyone
        )
        if self._is_masked:
            step.masks = tuple(MaskKey(name=worker.name, public=worker.mask_key) for worker in workers)
        self._steps[number] = step
        self._next_position += last - first
        return step

    def _next_task(self, step: Step, worker: Worker, now_s: float) -> StepTask | None:
        """Return what a free worker does next in a step: its own task, a lost worker's, or some of the tail."""
        task = step.task_for(worker.name, self._roster.num_servers, now_s)
        if task is None and step.tail_left and self._at_step[worker.name] < step.number:
            samples = self._grant(step, worker, now_s)
            task = step.new_tail_task(worker.name, samples, now_s) if samples else None
        return task

    def _grant(self, step: Step, worker: Worker, now_s: float, own: StepTask | None = None) -> int:
        """Return how much of the tail a worker takes now, which may still be at a task of its `own`."""
        if not step.tail_left:
            return 0
        shares = {share.name: share for share in shares_of(self._workers, balance=self._training.balance)}
        others = []
        for task in step.open_tasks(self._roster.num_servers):
            other = self._roster.workers.get(task.worker)
            if other is not None and other.name != worker.name:
                # One that will get no more is waited for, as one whose share is fixed.
                share = shares[other.name] if task.is_open else replace(shares[other.name], share=0.0)
                others.append((share, _left_s(step, task, other, now_s)))
        if any(math.isinf(busy_s) for _, busy_s in others):
            others = []  # nobody knows when those are free: whoever asks takes it
        busy_s = max(0.0, own.busy_until_s - now_s) if own is not None and own.busy_until_s is not None else 0.0
        return grant(shares[worker.name], step.tail_left, others, step_s=step.plan.step_s, busy_s=busy_s)

    def _rescue(self, now_s: float) -> bool:
        """Have a lost worker's task done by one who waits for the next step, where nobody is free; True where one is.

        Whoever is at work asks for more when it is done, and gets such a task then.
        """
        step = self.current
        if step is None or self._everyone or any(task.is_open for task in step.open_tasks(self._roster.num_servers)):
            return False
        if step.tail_left and not step.planned:
            step.orphan_tail(now_s)
        following = self._steps.get(self.step + 1)
        if not step.orphans or following is None:
            return False
        waiting = [
            task
            for task in following.tasks.values()
            if task not in following.orphans and task.worker in self._roster.workers and task.worker not in self._late
        ]
        if not waiting:
            return False
        task = max(waiting, key=lambda task: self._roster.workers[task.worker].speed.samples_per_s or 0.0)
        worker = self._roster.workers[task.worker]
        del following.tasks[task.number]
        following.planned[worker.name] = task
        self._at_step[worker.name] = step.number
        self._decisions.send(
            worker, Recall(generation=self._roster.generation, step=following.number, task=task.number)
        )
        self._advance_worker(worker, now_s)
        return True

    # -- who asks for more ---------------------------------------------------------------------------------------------

    def asks(self, worker: Worker, more: More, now_s: float) -> None:
        """Answer who is about to run out of work: now, or later where that is in time."""
        if (step := self._steps.get(more.step)) is not None and more.task in step.tasks:
            step.tasks[more.task].is_at_last = True
            if more.busy_s:
                step.tasks[more.task].busy_until_s = now_s + more.busy_s
        early_s = more.busy_s - LEAD * more.fetch_s - LEAST_LEAD_S
        if self._has_tail(more) and early_s > 0:
            self._asking.append(PendingAsk(now_s + early_s, worker, more))
        else:
            self._answer(worker, more, now_s)

    def ran_out(self, worker: Worker, now_s: float) -> None:
        """Answer at once who ran out of work sooner than was thought."""
        taken = [each for each in self._asking if each.worker.name == worker.name]
        self._asking = [each for each in self._asking if each.worker.name != worker.name]
        for each in taken:
            self._answer(worker, each.more, now_s)

    def due_s(self) -> float:
        """Return when the next one has to be answered."""
        return min((each.due_s for each in self._asking), default=math.inf)

    def answer_due(self, now_s: float) -> None:
        """Answer those whose time has come, and those for whom nothing is left to wait for, the first due first."""
        taken = [each for each in self._asking if each.due_s <= now_s or not self._has_tail(each.more)]
        self._asking = [each for each in self._asking if each not in taken]
        for each in sorted(taken, key=lambda each: each.due_s):
            self._answer(each.worker, each.more, now_s)

    def _has_tail(self, more: More) -> bool:
        """Say whether something is left to be handed out of the step that somebody asks for more of."""
        step = self._steps.get(more.step)
        return step is not None and step.tail_left > 0

    def _answer(self, worker: Worker, more: More, now_s: float) -> None:
        """Give a worker a piece of the tail, or the next task."""
        step = self._steps.get(more.step)
        task = step.tasks.get(more.task) if step is not None else None
        # One that was closed stays so: its gradients may be with the servers already.
        if step is not None and task is not None and task.worker == worker.name and task.is_open:
            samples = self._grant(step, worker, now_s, task)
            if samples:
                self._extend(worker, step, task, *step.extend(task, samples))
                return
            if not self._everyone and self._training.balance and self._steal(step, task, worker, more, now_s):
                return
            task.is_open = False
        self._decisions.send(worker, Close(generation=self._roster.generation, step=more.step, task=more.task))
        self._advance_worker(worker, now_s)

    def _extend(self, worker: Worker, step: Step, task: StepTask, first: int, last: int) -> None:
        """Tell a worker that its task has become longer."""
        task.is_longer(worker.speed.piece_seconds(last - first))
        self._decisions.send(
            worker,
            Extend(generation=self._roster.generation, step=step.number, task=task.number, first=first, last=last),
        )

    # -- work stealing: who is free gets what a worker that turns out slow has not begun -------------------------------

    def _steal(self, step: Step, own: StepTask, taker: Worker, more: More, now_s: float) -> bool:
        """Ask the worker that would be last for some of its task; True where the taker has to wait for the answer.

        Nobody takes who gave something back in this step, nor where somebody's share is fixed by hand.
        """
        rate = taker.speed.samples_per_s
        if step.tail_left or own.has_given or rate is None or taker.settings.share is not None:
            return False
        cost_s = more.busy_s + AROUND * more.fetch_s + taker.speed.piece_fixed_s
        slow: tuple[float, StepTask, Worker] | None = None
        for task in step.open_tasks(self._roster.num_servers):
            giver = self._roster.workers.get(task.worker)
            if giver is None or giver.name in {taker.name, *self._asked_back} or giver.settings.share is not None:
                continue
            if not task.is_open or task.is_at_last or task.is_asked_back:
                continue
            left_s = _left_s(step, task, giver, now_s)
            if left_s > WORTH * cost_s and (slow is None or left_s > slow[0]):
                slow = (left_s, task, giver)
        if slow is None:
            return False
        _, task, giver = slow
        task.is_asked_back = True
        self._asked_back[giver.name] = AskedBack(step.number, task.number, taker, more)
        self._decisions.send(
            giver,
            GiveBack(
                generation=self._roster.generation,
                step=step.number,
                task=task.number,
                samples_per_s=rate,
                fixed_s=cost_s,
            ),
        )
        return True

    def gave_back(self, giver: Worker, message: GaveBack, now_s: float) -> bool:
        """Hand on what a slow worker gave back; False where that is not what it had."""
        asked, step = self._asked_back.get(giver.name), self._steps.get(message.step)
        if asked is None or (asked.step, asked.task) != (message.step, message.task):
            return True  # nobody waits for it any more
        del self._asked_back[giver.name]
        task = step.tasks.get(message.task) if step is not None else None
        if step is None or task is None:
            return True
        if not step.take_back(task, message.ranges):
            return False
        if not message.ranges:
            if self._is_there(asked.taker):
                self._answer(asked.taker, asked.more, now_s)
        elif not self._hand_on(step, asked, message.ranges):
            step.orphan(message.ranges, now_s)
        return True

    def _hand_on(self, step: Step, asked: AskedBack, ranges: Sequence[tuple[int, int]]) -> bool:
        """Give positions to whoever waits for them; False where it is gone, or has ended its task."""
        taker, task = asked.taker, step.tasks.get(asked.more.task)
        if task is None or task.worker != taker.name or not task.is_open or task in step.orphans:
            return False
        task.is_at_last = False
        for first, last in _joined(ranges):
            task.ranges.append((first, last))
            self._extend(taker, step, task, first, last)
        return True

    def _ask_elsewhere(self, name: str) -> None:
        """Forget that a worker was asked for something back; who waits for its answer asks again."""
        asked = self._asked_back.pop(name, None)
        if asked is not None and self._is_there(asked.taker):
            self._asking.append(PendingAsk(0.0, asked.taker, asked.more))

    def _is_there(self, taker: Worker) -> bool:
        """Say whether a worker is there, and not another of its name."""
        return self._roster.workers.get(taker.name) is taker


def _left_s(step: Step, task: StepTask, worker: Worker, now_s: float) -> float:
    """Predict how long a worker still computes for a task; infinite where that is not known.

    What it said itself when it began the last of it counts more than how long its tasks take. One that should have
    ended is late, and is taken to be so for as long again as predictions are off.
    """
    if task.busy_until_s is not None:
        end_s = task.busy_until_s
    else:
        expected_s = worker.speed.seconds(task.num_positions) or math.inf
        end_s = max(task.handed_s, step.begun_s) + expected_s - worker.speed.push_s
    return max(end_s - now_s, worker.speed.error * (now_s - step.begun_s))


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges with neighbours as one."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
