"""What each offer is worth now, restarts included: a change pays in its own time.

Let p be a job's costate, s the speed of an offer, s0 the speed it has now, R its restart, `left` its work, r what other
workers of its type take it (R where its workers are of another type, or where nothing else is said), and

    tau = the time to the next completion as things run,        H(R) = min(sqrt(R tau), left / s)

the time over which a change has to pay: the root balances what a change costs, R a change, against what waiting for a
better moment costs, which grows with the time between moments.

    a job that waits, started        p left / (R + left / s)         its start is part of what it has to do
    a job that runs, kept            p s0
    made faster                      p s H(r) / (H(r) + r)            it pays one change
    made slower                      p s H(r) / (H(r) + r) - owed(r)  and a second one, to come back
    stopped                          - owed(R)                        owed(R) = p s0 R / (H + R), H of its own speed
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from dovetail.scheduler.value.offers import Offers
from dovetail.scheduler.view import ClusterView, FloatArray, IntArray


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
