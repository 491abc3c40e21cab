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
from dovetail.runtime.dispatch import WorkerShare, grant
from dovetail.runtime.messages import Extend, GaveBack, GiveBack, More

AROUND = 2.0
"""How many times what a worker takes to fetch a piece it takes around computing it: to fetch, and to send."""
WORTH = 2.0
"""How many times what it costs to take something over its worker must still have to do."""


def granted(
    step: Step, worker: Worker, own: StepTask | None, shares: Mapping[str, WorkerShare], roster: Roster, now_s: float
) -> int:
    """Return how much of the tail a worker takes now, which may still be at a task of its `own`."""
    others = []
    for task in step.open_tasks(roster.num_servers):
        other = roster.workers.get(task.worker)
        if other is not None and other.name != worker.name:
            # One that will get no more is waited for, as one whose share is fixed.
            share = shares[other.name] if task.is_open else replace(shares[other.name], share=0.0)
            others.append((share, _left_s(step, task, other, now_s)))
    if any(math.isinf(busy_s) for _, busy_s in others):
        others = []  # nobody knows when those are free: whoever asks takes it
    busy_s = max(0.0, own.busy_until_s - now_s) if own is not None and own.busy_until_s is not None else 0.0
    return grant(shares[worker.name], step.tail_left, others, step_s=step.plan.step_s, busy_s=busy_s)


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
            task.is_longer(taker.speed.piece_seconds(last - first))
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
