"""Who computes how much of a step, so that all workers finish together: pure functions and small records."""

from __future__ import annotations

from dovetail.runtime.dispatch.floor import with_floor
from dovetail.runtime.dispatch.speed import WorkerSpeed, first_guess
from dovetail.runtime.dispatch.split import WorkerShare, check_shares, split
from dovetail.runtime.dispatch.tail import StepPlan, grant, plan_step, seconds_left, tail_part

__all__ = [
    "StepPlan",
    "WorkerShare",
    "WorkerSpeed",
    "check_shares",
    "first_guess",
    "grant",
    "plan_step",
    "seconds_left",
    "split",
    "tail_part",
    "with_floor",
]
