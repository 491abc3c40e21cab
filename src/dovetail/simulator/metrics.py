"""What a simulation found: when each job started and finished, and what that means for everybody."""

from __future__ import annotations

from msgspec import Struct


class JobOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one job fared; `egress_cost` is USD for its bytes between sites, where there are sites."""

    id: str
    start_s: float
    finish_s: float
    restarts: int
    egress_cost: float | None = None


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the event file: from `t_s` on, the job holds `workers` of `type` (0 = stopped or finished)."""

    t_s: float
    job: str
    type: str
    workers: int
    batch: int | None = None
    sites: tuple[str, ...] | None = None


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a whole workload fared under a policy; `egress_cost` is that of all jobs."""

    policy: str
    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    makespan_s: float
    restarts: int
    utilization: float
    jobs: tuple[JobOutcome, ...]
    egress_cost: float | None = None

    def __repr__(self) -> str:
        """Return the figures without the jobs."""
        times = f"mean {self.mean_jct_s:,.1f} s, p99 {self.p99_jct_s:,.1f} s, makespan {self.makespan_s:,.1f} s"
        rest = f"{self.restarts:,} restarts, {self.utilization:.1%} used"
        return f"<Outcome of {len(self.jobs):,} jobs under {self.policy}: completion {times}, {rest}; see .jobs>"


class Trial(Struct, frozen=True, kw_only=True):
    """An outcome with what led to it: every change, and what the decisions cost."""

    outcome: Outcome
    changes: tuple[Change, ...]
    decisions: int
    decision_s_mean: float
    decision_s_worst: float
