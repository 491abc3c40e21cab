"""Quotas: how many workers the jobs of one user may hold together, whatever the policy.

The policy is asked first. Where a user comes out above the quota, that user's jobs are settled, those that run before
those that wait and in order of submission, and the policy is asked again about all others with what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.scheduler.policy import Policy
from dovetail.scheduler.view import Allocation, ClusterView, allocation


class WithinQuotas:
    """Another policy, held to the users' quotas."""

    def __init__(self, policy: Policy, *, users: Sequence[str], quotas: Mapping[str, int]) -> None:
        """Hold to `quotas` the jobs of `users`, one entry a row."""
        self._policy, self._users, self._quotas = policy, users, quotas

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the policy's answer, with nobody above a quota."""
        settled: dict[int, tuple[int, int]] = {}
        while True:
            wanted = self._policy.decide(view, now_s)
            user = self._first_above(wanted)
            if user is None:
                break
            given = self._settle(wanted, view, user)
            settled |= given
            rows = np.array([row for row in view.rows.tolist() if self._users[row] != user], np.int64)
            running = np.array([row for row in view.running.tolist() if self._users[row] != user], np.int64)
            capacity = view.capacity.copy()
            for kind, workers in given.values():
                capacity[kind] -= workers
            view = replace(view, rows=rows, running=running, capacity=capacity)
            if not len(rows):
                wanted = allocation(rows, rows, rows)
                break
        if not settled:
            return wanted
        more = np.array(list(settled), np.int64)
        kinds = np.array([kind for kind, _ in settled.values()], np.int64)
        counts = np.array([count for _, count in settled.values()], np.int64)
        return allocation(
            np.concatenate((wanted.rows, more)),
            np.concatenate((wanted.types, kinds)),
            np.concatenate((wanted.workers, counts)),
        )

    def _first_above(self, wanted: Allocation) -> str | None:
        """Return a user who was given more than the quota."""
        held: dict[str, int] = {}
        for row, workers in zip(wanted.rows.tolist(), wanted.workers.tolist(), strict=True):
            user: str = self._users[row]
            held[user] = held.get(user, 0) + workers
            if user in self._quotas and held[user] > self._quotas[user]:
                return user
        return None

    def _settle(self, wanted: Allocation, view: ClusterView, user: str) -> dict[int, tuple[int, int]]:
        """Return type and workers of each of a user's jobs that fit the quota."""
        left, given = self._quotas[user], {}
        theirs = [place for place, row in enumerate(wanted.rows.tolist()) if self._users[row] == user]
        theirs.sort(key=lambda place: (view.workers[wanted.rows[place]] == 0, wanted.rows[place]))
        for place in theirs:
            row, kind = int(wanted.rows[place]), int(wanted.types[place])
            sizes = [
                size for size in range(min(left, int(wanted.workers[place])), 0, -1) if view.speed[row, kind, size]
            ]
            if sizes:
                given[row] = (kind, sizes[0])
                left -= sizes[0]
        return given
