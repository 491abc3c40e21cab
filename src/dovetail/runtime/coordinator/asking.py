"""Workers that asked for more of a step and are answered as late as is in time: then it shows who is fast in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.runtime.coordinator.members import Worker
from dovetail.runtime.messages import More

LEAD = 1.5
"""How many times what a worker takes to get new work ready it is answered before it needs it."""
LEAST_LEAD_S = 0.004


@dataclass(frozen=True, slots=True)
class Asking:
    """A worker that asked for more, and when it has to be answered."""

    due_s: float
    worker: Worker
    more: More


class AnswerLater:
    """Those who wait for an answer."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._asking: list[Asking] = []

    def can_wait(self, worker: Worker, more: More, now_s: float) -> bool:
        """Have a worker wait that will be busy for a while; False where it needs an answer now."""
        early_s = more.busy_s - LEAD * more.fetch_s - LEAST_LEAD_S
        if early_s > 0:
            self._asking.append(Asking(now_s + early_s, worker, more))
        return early_s > 0

    def put_off(self, worker: Worker, more: More) -> None:
        """Have a worker answered when answers are next given."""
        self._asking.append(Asking(0.0, worker, more))

    def due_s(self) -> float:
        """Return when the next one has to be answered."""
        return min((each.due_s for each in self._asking), default=math.inf)

    def take_of(self, name: str) -> list[Asking]:
        """Return what a worker asked, and forget it."""
        taken = [each for each in self._asking if each.worker.name == name]
        self._asking = [each for each in self._asking if each.worker.name != name]
        return taken

    def take_due(self, now_s: float, has_tail: Callable[[More], bool]) -> list[Asking]:
        """Return those whose time has come and those who would wait for nothing, the first due first."""
        taken = [each for each in self._asking if each.due_s <= now_s or not has_tail(each.more)]
        self._asking = [each for each in self._asking if each not in taken]
        return sorted(taken, key=lambda each: each.due_s)

    def clear(self) -> None:
        """Forget everyone."""
        self._asking.clear()
