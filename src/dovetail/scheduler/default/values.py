"""What each offer is worth now, restarts included; what a second of delay counts, and who must not wait any longer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from dovetail.scheduler.default.offers import Offers
from dovetail.scheduler.view import BoolArray, ClusterView, FloatArray, IntArray

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
    """Return what a second of each job's delay counts.

        weight_j ((due_j / mean due) ** knob + 4 knob (least_j / drain) ** 2)

    `least_j` is the least time in which the job could be done; `due_j` its age and `least_j`, the least completion time
    it can still have; `drain` the least time in which all work there could be done. At knob 0 every job counts the
    same, which is the mean completion time; further on, jobs count more that are old already, and those that would be
    last and alone.
    """
    due_s = times.age_s + times.least_s
    old = (due_s / due_s.mean()) ** knob
    critical = CRITICAL * knob * (times.least_s / times.drain_s) ** 2
    return np.asarray(weight * (old + critical))


def must_run(offers: Offers, times: JobTimes, capacity: IntArray) -> BoolArray:
    """Say which jobs, in order of submission, are overdue and fit beside the overdue ones before them.

    A job is overdue once it has been there

        (1 + jobs before it) times as long as it would take on its slowest offer,

    jobs before it being those of an earlier submission that are still there: as long as it would take if each of them
    took a turn as long as its own. Overdue jobs are served in order of submission, as many as fit together on their
    least workers, before anybody else. While a job waits, neither factor grows, and its age does: so every job becomes
    overdue. From then on only an overdue job of an earlier submission can take its place, and that one keeps it until
    it is done. So a job that must wait for n others is done, at the latest, when all of them have been overdue and run,
    and it too.
    """
    turns = 1 + np.arange(len(times.age_s))
    served = np.zeros(len(turns), bool)
    room = capacity.copy()
    for job in np.flatnonzero(times.age_s > turns * times.longest_s).tolist():
        offer = int(offers.held[job])
        if offer < 0 or offers.workers[offer] > room[offers.types[offer]]:
            offer = _least_offer(offers, job, room)
        if offer >= 0:
            room[offers.types[offer]] -= offers.workers[offer]
            served[job] = True
    return served


def _least_offer(offers: Offers, job: int, room: IntArray) -> int:
    """Return a job's offer of fewest workers that fits, the fastest of those; -1 where none does."""
    those = range(int(offers.first[job]), int(offers.first[job + 1]))
    fitting = [offer for offer in those if offers.workers[offer] <= room[offers.types[offer]]]
    return min(fitting, key=lambda offer: (offers.workers[offer], -offers.speeds[offer]), default=-1)


def next_end_s(view: ClusterView, offers: Offers, now_s: float) -> float:
    """Return the time to the next completion as things run; infinity where nothing runs."""
    runs = np.flatnonzero(offers.held >= 0)
    if not len(runs):
        return math.inf
    rows = view.rows[runs]
    starts_s = np.maximum(view.started_s[rows] + view.restart_s[rows] - now_s, 0.0)
    return float((starts_s + view.left[rows] / offers.speeds[offers.held[runs]]).min())


@njit(cache=True, nogil=True)
def change_values(
    first: IntArray,
    types: IntArray,
    speeds: FloatArray,
    held: IntArray,
    worth: FloatArray,
    left: FloatArray,
    restart_s: FloatArray,
    resize_s: FloatArray,
    next_end_s: float,
) -> FloatArray:
    """Return the value of each offer over that of stopping; jobs by position.

    Let p be a job's costate, s the speed of an offer, s0 the speed it has now, R its restart, `left` its work, r what
    other workers of its type take it (R where its workers are of another type, or where nothing else is said), and

        tau = the time to the next completion as things run,        H(R) = min(sqrt(R tau), left / s)

    the time over which a change has to pay: the root balances what a change costs, R a change, against what waiting for
    a better moment costs, which grows with the time between moments.

        a job that waits, started        p left / (R + left / s)         its start is part of what it has to do
        a job that runs, kept            p s0
        made faster                      p s H(r) / (H(r) + r)            it pays one change
        made slower                      p s H(r) / (H(r) + r) - owed(r)  and a second one, to come back
        stopped                          - owed(R)                        owed(R) = p s0 R / (H + R), H of its own speed
    """
    values = np.empty(len(speeds))
    for job in range(len(held)):
        if held[job] < 0:
            for offer in range(first[job], first[job + 1]):
                values[offer] = worth[job] * left[job] / (restart_s[job] + left[job] / speeds[offer])
            continue
        now = speeds[held[job]]
        owed = worth[job] * now * _lost(restart_s[job], next_end_s, left[job] / now)
        for offer in range(first[job], first[job + 1]):
            speed = speeds[offer]
            if offer == held[job]:
                values[offer] = worth[job] * speed + owed
                continue
            price_s = resize_s[job] if types[offer] == types[held[job]] else restart_s[job]
            values[offer] = worth[job] * speed * (1.0 - _lost(price_s, next_end_s, left[job] / speed)) + owed
            if speed <= now:
                values[offer] -= worth[job] * now * _lost(price_s, next_end_s, left[job] / now)
    return values


@njit(cache=True, nogil=True)
def _lost(price_s: float, next_end_s: float, left_s: float) -> float:
    """Return the share of the time over which a change has to pay, and the change itself, that the change takes."""
    if price_s <= 0.0:
        return 0.0
    return price_s / (min(math.sqrt(price_s * next_end_s), left_s) + price_s)
