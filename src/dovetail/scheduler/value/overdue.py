"""Who must not wait any longer, so that nobody starves.

A job is overdue once it has been there

    (1 + jobs before it) times as long as it would take on its slowest offer,

jobs before it being those of an earlier submission that are still there: as long as it would take if each of them took
a turn as long as its own. Overdue jobs are served in order of submission, as many as fit together on their least
workers, before anybody else. While a job waits, neither factor grows, and its age does: so every job becomes overdue.
From then on only an overdue job of an earlier submission can take its place, and that one keeps it until it is done. So
a job that must wait for n others is done, at the latest, when all of them have been overdue and run, and it too.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.value.offers import Offers
from dovetail.scheduler.value.weights import JobTimes
from dovetail.scheduler.view import BoolArray, IntArray


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
