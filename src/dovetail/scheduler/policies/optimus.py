"""Optimus' rule: one worker for everybody, then one more where it saves the most time.

Every job gets its least number of workers in order of submission. Then a single worker is added, again and again, to
the job whose remaining time Q / f(w) falls most, while workers last and the saving is positive.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.policies.seats import seat_in_order
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray, allocation


class Optimus:
    """Least workers for all, then one more where it saves the most."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the sizes that adding one at a time arrives at."""
        room = view.capacity.copy()
        seats = view.rows[: int(room.sum())]
        types, workers = seat_in_order(seats, view.speed, view.type, view.workers, room)
        add_while_it_saves(seats, types, workers, view.speed, view.left, room)
        return allocation(seats, types, workers)


@njit(cache=True, nogil=True)
def add_while_it_saves(
    rows: IntArray, types: IntArray, workers: IntArray, speed: FloatArray, left: FloatArray, room: IntArray
) -> None:
    """Add a worker to the best job in place until nothing fits or nothing saves."""
    gains = np.empty(len(rows))
    for position in range(len(rows)):
        gains[position] = _saving(rows[position], types[position], workers[position], speed, left)
    while True:
        best, best_gain = -1, 0.0
        for position in range(len(rows)):
            if gains[position] > best_gain and room[types[position]] > 0:
                best, best_gain = position, gains[position]
        if best < 0:
            return
        room[types[best]] -= 1
        workers[best] += 1
        gains[best] = _saving(rows[best], types[best], workers[best], speed, left)


@njit(cache=True, nogil=True)
def _saving(row: int, kind: int, workers: int, speed: FloatArray, left: FloatArray) -> float:
    """Return the seconds that one more worker saves; 0 where it cannot be."""
    if workers == 0 or workers + 1 >= speed.shape[2] or speed[row, kind, workers + 1] <= 0.0:
        return 0.0
    return float(left[row] / speed[row, kind, workers] - left[row] / speed[row, kind, workers + 1])
