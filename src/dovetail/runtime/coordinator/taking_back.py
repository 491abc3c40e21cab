"""The end of a step: who is free gets pieces of its tail, and what a worker that turns out slow has not begun."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dovetail.runtime.coordinator.asking import AnswerLater
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.members import Worker
from dovetail.runtime.coordinator.roster import Roster
from dovetail.runtime.coordinator.steps import Step, StepTask
from dovetail.runtime.dispatch import WorkerShare, grant, seconds_left
from dovetail.runtime.messages import Extend, GaveBack, GiveBack, More

AROUND = 2.0
"""How many times what a worker takes to fetch a piece it takes around computing it: to fetch, and to send."""
WORTH = 2.0
"""How many times what it costs to take something over its worker must still have to do."""


def granted(
    step: Step, worker: Worker, shares: Mapping[str, WorkerShare], roster: Roster, now_s: float, fetch_s: float
) -> int:
    """Return how much of the tail a worker takes now; `fetch_s` is what it takes to get a piece ready."""
    others = []
    left_s = math.inf
    for task in step.open_tasks(roster.num_servers):
        other = roster.workers.get(task.worker)
        if other is None or other.name == worker.name or not task.is_open:
            continue
        others.append((shares[other.name], max(0.0, _left_s(step, task, other, now_s))))
    if others and not any(math.isinf(busy_s) for _, busy_s in others):
        left_s = seconds_left(step.tail_left, others)
    share = shares[worker.name]
    fixed_s = share.fixed_s if share.piece_fixed_s is None else share.piece_fixed_s
    share = replace(share, piece_fixed_s=fixed_s + AROUND * fetch_s)
    return grant(share, step.tail_left, left_s, step_s=step.plan.step_s)


class Asked(NamedTuple):
    """What a worker was asked for, and by whom."""

    step: int
    task: int
    taker: Worker
    more: More


class TakingBack:
    """Who was asked to give back what it has not begun, and for whom."""

    def __init__(self, roster: Roster, decisions: Decisions) -> None:
        """Begin with nobody."""
        self._roster, self._decisions = roster, decisions
        self._asked: dict[str, Asked] = {}
        """By the worker that was asked."""

    def clear(self) -> None:
        """Forget everyone."""
        self._asked.clear()

    def begin(self, step: Step, own: StepTask, taker: Worker, more: More, now_s: float) -> bool:
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
            if giver is None or giver.name in {taker.name, *self._asked} or giver.settings.share is not None:
                continue
            if not task.is_open or task.is_at_last or task.is_asked_back:
                continue
            left_s = _left_s(step, task, giver, now_s)
            if left_s <= 0:
                left_s = math.inf  # it should have ended, and is not even at its last micro-batch
            if left_s > WORTH * cost_s and (slow is None or left_s > slow[0]):
                slow = (left_s, task, giver)
        if slow is None:
            return False
        _, task, giver = slow
        task.is_asked_back = True
        self._asked[giver.name] = Asked(step.number, task.number, taker, more)
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

    def answered(self, giver: Worker, message: GaveBack) -> tuple[Worker, More] | None:
        """Return who waits for an answer, or None where nobody does any more."""
        asked = self._asked.get(giver.name)
        if asked is None or (asked.step, asked.task) != (message.step, message.task):
            return None
        del self._asked[giver.name]
        return asked.taker, asked.more

    def hand_on(self, step: Step, taker: Worker, more: More, ranges: Sequence[tuple[int, int]]) -> bool:
        """Give positions to whoever waits for them; False where it is gone, or has ended its task."""
        task = step.tasks.get(more.task)
        if task is None or task.worker != taker.name or not task.is_open or task in step.orphans:
            return False
        task.is_at_last = False
        for first, last in _joined(ranges):
            task.ranges.append((first, last))
            self._decisions.send(
                taker,
                Extend(generation=self._roster.generation, step=step.number, task=task.number, first=first, last=last),
            )
        return True

    def drop(self, name: str, asking: AnswerLater) -> None:
        """Forget that a worker was asked; who waits for its answer asks again."""
        if (asked := self._asked.pop(name, None)) is not None and self._is_there(asked.taker):
            asking.put_off(asked.taker, asked.more)

    def _is_there(self, taker: Worker) -> bool:
        """Say whether a worker is there, and not another of its name."""
        return self._roster.workers.get(taker.name) is taker


def _left_s(step: Step, task: StepTask, worker: Worker, now_s: float) -> float:
    """Predict how long a worker is still at a task; infinite where that is not known."""
    expected_s = worker.speed.seconds(task.num_positions) or math.inf
    return max(task.handed_s, step.begun_s) + expected_s - now_s


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges with neighbours as one."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
