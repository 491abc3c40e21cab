"""What each offer is worth now, restarts included: a change pays in its own time.

Let p be a job's costate, s the speed of an offer, s0 the speed it has now, R its restart, `left` its work, and

    tau = the time to the next completion as things run,        H = min(sqrt(R tau), left / s)

the time over which a change has to pay: the root balances what a change costs, R a change, against what waiting for a
better moment costs, which grows with the time between moments.

    a job that waits, started        p left / (R + left / s)         its start is part of what it has to do
    a job that runs, kept            p s0
    made faster                      p s H / (H + R)                  it pays one restart
    made slower                      p s H / (H + R) - owed           and a second one, to come back
    stopped                          - owed                           owed = p s0 R / (H + R), with H of its own speed
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
    speeds: FloatArray,
    held: IntArray,
    worth: FloatArray,
    left: FloatArray,
    restart_s: FloatArray,
    next_end_s: float,
) -> FloatArray:
    """Return the value of each offer over that of stopping; jobs by position."""
    values = np.empty(len(speeds))
    for job in range(len(held)):
        restart = restart_s[job]
        within_s = math.sqrt(restart * next_end_s) if restart > 0.0 else math.inf
        now = speeds[held[job]] if held[job] >= 0 else 0.0
        owed = 0.0
        if held[job] >= 0:
            owed = worth[job] * now * _lost(min(within_s, left[job] / now), restart)
        for offer in range(first[job], first[job + 1]):
            speed = speeds[offer]
            if held[job] < 0:
                values[offer] = worth[job] * left[job] / (restart + left[job] / speed)
            elif offer == held[job]:
                values[offer] = worth[job] * speed + owed
            else:
                values[offer] = worth[job] * speed * (1.0 - _lost(min(within_s, left[job] / speed), restart))
                if speed > now:
                    values[offer] += owed
    return values


@njit(cache=True, nogil=True)
def _lost(horizon_s: float, restart_s: float) -> float:
    """Return the share of a horizon and a restart that the restart takes."""
    return restart_s / (horizon_s + restart_s) if restart_s > 0.0 else 0.0
