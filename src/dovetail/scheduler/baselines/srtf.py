"""Shortest remaining time first: the job that could be done soonest gets the workers with which it is fastest.

Remaining time is work left over the greatest speed. In that order, each job takes the fastest size and type that still
has room; the rest wait. A job that runs is stopped whenever a shorter one needs its workers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.baselines.seats import fastest_workers
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray, allocation


class Srtf:
    """The shortest first, each on as many workers as pay."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the workers of the shortest jobs."""
        fastest = view.speed[view.rows].max(axis=(1, 2))
        order = view.rows[np.argsort(view.left[view.rows] / np.maximum(fastest, 1e-300), kind="stable")]
        types, workers = serve_fastest(order, view.speed, view.capacity.copy())
        return allocation(order, types, workers)


@njit(cache=True, nogil=True)
def serve_fastest(order: IntArray, speed: FloatArray, room: IntArray) -> tuple[IntArray, IntArray]:
    """Give each job of `order` the fastest size and type that has room."""
    types = np.full(len(order), -1, np.int64)
    workers = np.zeros(len(order), np.int64)
    for position in range(len(order)):
        row, best_speed = order[position], 0.0
        for kind in range(len(room)):
            wanted = fastest_workers(speed, row, kind, room[kind])
            if wanted > 0 and speed[row, kind, wanted] > best_speed:
                types[position], workers[position], best_speed = kind, wanted, speed[row, kind, wanted]
        if workers[position] > 0:
            room[types[position]] -= workers[position]
            if room.sum() <= 0:
                break
    return types, workers
