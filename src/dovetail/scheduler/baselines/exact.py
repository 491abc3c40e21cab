"""The study's own objective, solved exactly: the least sum of remaining times.

Jobs get a seat in order of submission while their least workers fit; among those, of all ways to give out the workers,
the one with the least

    sum_j Q_j / f_j(type_j, w_j)

is found by dynamic programming (or by HiGHS on large clusters). Doubling comes within a percent of it. That objective
favours long jobs, so the optimum is no better for the mean completion time: it is the yardstick, not the way to go.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.allocate import JobOptions, best_choice
from dovetail.scheduler.baselines.seats import seat_in_order
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray


class Exact:
    """The optimum of the sum of remaining times."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the sizes with the least sum of remaining times."""
        room = view.capacity.copy()
        seats = view.rows[: int(room.sum())]
        _, workers = seat_in_order(seats, view.speed, view.type, view.workers, room)
        seated = seats[workers > 0]
        options = remaining_time_options(view, seated)
        chosen = best_choice(options, view.capacity, required=True)
        return Allocation(rows=seated, types=options.types[chosen], workers=options.workers[chosen])


def remaining_time_options(view: ClusterView, rows: IntArray) -> JobOptions:
    """Return every size a job may have, worth minus its remaining time there."""
    first, types, workers, values = _options(rows, view.speed, view.left, view.capacity)
    return JobOptions(first=first, types=types, workers=workers, values=values)


@njit(cache=True, nogil=True)
def _options(
    rows: IntArray, speed: FloatArray, left: FloatArray, capacity: IntArray
) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return the options of `rows`; a size no faster than a smaller one of its type is left out."""
    most = len(rows) * len(capacity) * speed.shape[2]
    first = np.zeros(len(rows) + 1, np.int64)
    types, workers, values = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    count = 0
    for position in range(len(rows)):
        for kind in range(len(capacity)):
            fastest = 0.0
            for size in range(1, min(capacity[kind], speed.shape[2] - 1) + 1):
                if speed[rows[position], kind, size] > fastest:
                    fastest = speed[rows[position], kind, size]
                    types[count], workers[count] = kind, size
                    values[count] = -left[rows[position]] / fastest
                    count += 1
        first[position + 1] = count
    return first, types[:count], workers[:count], values[:count]
