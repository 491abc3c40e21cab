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
    """Return what a second of each job's delay counts."""
    due_s = times.age_s + times.least_s
    old = (due_s / due_s.mean()) ** knob
    critical = CRITICAL * knob * (times.least_s / times.drain_s) ** 2
    return np.asarray(weight * (old + critical))


def must_run(offers: Offers, times: JobTimes, capacity: IntArray) -> BoolArray:
    """Say which jobs, in order of submission, are overdue and fit beside the overdue ones before them."""
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
    """Return the value of each offer over that of stopping; jobs by position."""
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
