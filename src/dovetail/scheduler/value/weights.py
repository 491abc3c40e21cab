"""What a second of each job's delay counts, and the times that follow from what jobs have left.

    weight_j ((due_j / mean due) ** knob + 4 knob (least_j / drain) ** 2)

`least_j` is the least time in which the job could be done; `due_j` its age and `least_j`, the least completion time it
can still have; `drain` the least time in which all work there could be done. At knob 0 every job counts the same, which
is the mean completion time; further on, jobs count more that are old already, and those that would be last and alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.scheduler.value.offers import Offers
from dovetail.scheduler.view import ClusterView, FloatArray

CRITICAL = 4.0
"""What a job counts more that takes as long as everything together, at the end of the knob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """Times of the view's jobs, by position."""

    least_s: FloatArray
    """With the offer it is fastest on, a start included where it waits."""
    longest_s: FloatArray
    """With the offer it is slowest on, a start included."""
    age_s: FloatArray
    drain_s: float


def job_times(view: ClusterView, offers: Offers, now_s: float) -> JobTimes:
    """Return the times of the jobs that are there."""
    left, restart_s = view.left[view.rows], view.restart_s[view.rows]
    start_s = np.where(view.workers[view.rows] == 0, restart_s, 0.0)
    least_s = left / offers.most(offers.speeds) + start_s
    on_one_s = left / offers.most(offers.speeds / offers.workers)
    return JobTimes(
        least_s=least_s,
        longest_s=left / -offers.most(-offers.speeds) + restart_s,
        age_s=now_s - view.submit_s[view.rows],
        drain_s=max(float(least_s.max()), float(on_one_s.sum()) / int(view.capacity.sum())),
    )


def delay_weights(times: JobTimes, weight: FloatArray, knob: float) -> FloatArray:
    """Return what a second of each job's delay counts."""
    due_s = times.age_s + times.least_s
    old = (due_s / due_s.mean()) ** knob
    critical = CRITICAL * knob * (times.least_s / times.drain_s) ** 2
    return np.asarray(weight * (old + critical))
