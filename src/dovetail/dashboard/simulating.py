"""Simulations as the page shows them: what a policy came to, and every change, thinned where there are very many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail.errors import DovetailError, did_you_mean
from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.simulator.engine import simulate
from dovetail.simulator.metrics import Change
from dovetail.spec.workload import Workload

MOST_CHANGES = 20_000
SHOWN_POLICIES = ("dovetail", "fifo", "las", "srtf", "max-min")
"""Those that are simulated where nobody says which."""


def workload_facts(workload: Workload) -> dict[str, Any]:
    """Return what the page shows of a workload."""
    return {
        "capacity": workload.capacity,
        "jobs": [{"id": job.id, "submit_s": job.submit_s} for job in workload.jobs],
        "policies": list(POLICIES),
        "first_policies": [name for name in SHOWN_POLICIES if name in POLICIES],
    }


def simulated(workload: Workload, policy: str) -> dict[str, Any]:
    """Return how a workload fares under one of our policies."""
    if policy not in POLICIES:
        raise DovetailError(f"`{policy[:60]}` is no policy here", hint=did_you_mean(policy, POLICIES))
    trial = simulate(workload, make_policy(policy), name=policy, clock=time.perf_counter)
    changes = thinned(trial.changes, most=MOST_CHANGES)
    return {
        **msgspec.to_builtins(trial.outcome),
        "decisions": trial.decisions,
        "decision_s_mean": trial.decision_s_mean,
        "changes": [[change.t_s, change.job, change.type, change.workers] for change in changes],
        "all_changes": len(trial.changes),
    }


def thinned(changes: Sequence[Change], *, most: int) -> list[Change]:
    """Return about `most` changes at the most: of each job the last one in each short stretch of time.

    What a job holds between two stretches is right; what it held for less than one may be missing.
    """
    if len(changes) <= most:
        return list(changes)
    num_jobs = len({change.job for change in changes})
    stretches = max(1, most // max(1, num_jobs))
    begin_s, end_s = changes[0].t_s, changes[-1].t_s
    length_s = max((end_s - begin_s) / stretches, 1e-9)
    last = {(change.job, int((change.t_s - begin_s) / length_s)): change for change in changes}
    return sorted(last.values(), key=lambda change: change.t_s)
