"""Deciding in rounds only: what some schedulers do, and what comparing with them takes."""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.policy import Policy
from dovetail.scheduler.view import Allocation, ClusterView


class OnlyInRounds:
    """Another policy that is asked at the start of each round; between, what runs goes on and nothing starts.

    The workload must give the same `round_s`, so that every round begins with a decision.
    """

    def __init__(self, policy: Policy, *, round_s: float, first_s: float = 0.0) -> None:
        """Ask `policy` at `first_s` and every `round_s` from then on."""
        self._policy = policy
        self._round_s = round_s
        self._first_s = first_s
        self._next_s = first_s

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the policy's answer at the start of a round, and what runs already at any other time."""
        if now_s < self._next_s:
            rows = view.running
            return Allocation(rows=rows, types=view.type[rows], workers=view.workers[rows])
        rounds = np.floor((now_s - self._first_s) / self._round_s + 1e-9) + 1
        self._next_s = self._first_s + rounds * self._round_s
        return self._policy.decide(view, now_s)
