"""First in, first out: jobs start in order of submission, run to their end, and nobody overtakes.

A job takes the workers with which it is fastest, on the type that is fastest for it of those that have room for that
many now; where no type has, it and all behind it wait. Nothing that runs is ever touched.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.policies.seats import fastest_workers
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray


class Fifo:
    """Jobs in order of submission, each on as many workers as pay."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:  # noqa: ARG002
        """Keep what runs, then start waiting jobs in order until one does not fit."""
        room = view.capacity.copy()
        np.subtract.at(room, view.type[view.running], view.workers[view.running])
        rows, types, workers = start_in_order(view.rows, view.workers, view.speed, view.capacity, room)
        return Allocation(
            rows=np.concatenate((view.running, rows)),
            types=np.concatenate((view.type[view.running], types)),
            workers=np.concatenate((view.workers[view.running], workers)),
        )


@njit(cache=True, nogil=True)
def start_in_order(
    rows: IntArray, held: IntArray, speed: FloatArray, capacity: IntArray, room: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Start those of `rows` that hold nothing, in order, until one does not fit."""
    started = np.empty(len(rows), np.int64)
    types = np.empty(len(rows), np.int64)
    workers = np.empty(len(rows), np.int64)
    count = 0
    for row in rows:
        if held[row] > 0:
            continue
        if room.sum() <= 0:
            break
        best_type, best_workers, best_speed = -1, 0, 0.0
        for kind in range(len(capacity)):
            wanted = fastest_workers(speed, row, kind, capacity[kind])
            if 0 < wanted <= room[kind] and speed[row, kind, wanted] > best_speed:
                best_type, best_workers, best_speed = kind, wanted, speed[row, kind, wanted]
        if best_type < 0:
            break
        started[count], types[count], workers[count] = row, best_type, best_workers
        room[best_type] -= best_workers
        count += 1
    return started[:count], types[:count], workers[:count]
