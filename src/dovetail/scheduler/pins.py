"""Sizes that users ask for: a running job gets its own, whatever the policy, as soon as there is room.

The policy is asked about all other jobs, with what is left. Some policies never touch what runs: where their answer
does not fit, the job keeps what it has until others are done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dovetail.scheduler.policy import Policy
from dovetail.scheduler.view import Allocation, ClusterView, IntArray, allocation


class WithPins:
    """Another policy, for jobs whose size nobody has asked for."""

    def __init__(self, policy: Policy, pins: Mapping[int, int]) -> None:
        """Hold rows to sizes; one that does not run is left to the policy, which is offered that size alone."""
        self._policy, self._pins = policy, pins

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the policy's answer for the others, with the pinned ones added."""
        pinned = [row for row in view.running.tolist() if row in self._pins]
        if not pinned:
            return self._policy.decide(view, now_s)
        held = {row: (int(view.type[row]), int(view.workers[row])) for row in pinned}
        asked = {
            row: (kind, self._pins[row]) for row, (kind, _) in held.items() if self._pins[row] <= view.capacity[kind]
        }  # one that its type has not room for is stopped, and starts on another
        for given in (asked, *({**asked, row: held[row]} for row in reversed(asked)), held):
            left = view.capacity.copy()
            for kind, workers in given.values():
                left[kind] -= workers
            if (left < 0).any():
                continue
            answer = self._ask(view, pinned, left, now_s)
            if _fits(answer, left):
                return _joined(answer, given)
        return _joined(allocation(*[np.empty(0, np.int64)] * 3), held)

    def _ask(self, view: ClusterView, pinned: list[int], left: IntArray, now_s: float) -> Allocation:
        """Ask about the others."""
        rows = view.rows[~np.isin(view.rows, pinned)]
        running = view.running[~np.isin(view.running, pinned)]
        if not len(rows):
            return allocation(rows, rows, rows)
        return self._policy.decide(replace(view, rows=rows, running=running, capacity=left), now_s)


def _fits(answer: Allocation, left: IntArray) -> bool:
    used = np.bincount(answer.types, weights=answer.workers, minlength=len(left)) if len(answer.rows) else 0
    return bool((used <= left).all())


def _joined(answer: Allocation, given: Mapping[int, tuple[int, int]]) -> Allocation:
    return Allocation(
        rows=np.concatenate((answer.rows, np.array(list(given), np.int64))),
        types=np.concatenate((answer.types, np.array([kind for kind, _ in given.values()], np.int64))),
        workers=np.concatenate((answer.workers, np.array([count for _, count in given.values()], np.int64))),
    )
