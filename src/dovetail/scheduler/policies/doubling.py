"""The doubling heuristic for ring-architecture jobs.

Every job gets its least number of workers, in order of submission; the rest queue. Then again and again the job with
the largest saving a worker,

    (Q / f(w) - Q / f(2 w)) / w,        Q the work left, f(w) the speed on w workers,

is doubled, while workers last and the saving is positive. Adding workers one by one would stall at powers of two, where
8 -> 9 can be slower. The sizes are computed afresh at every decision; what comes out unchanged keeps running.

United States patent 11,693,706 B2 claims this heuristic: it is one policy among several here and never the default.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.policies.seats import seat_in_order
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray, allocation


class Doubling:
    """Least workers for all, then double where it saves the most a worker."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the sizes that doubling arrives at."""
        room = view.capacity.copy()
        seats = view.rows[: int(room.sum())]  # nobody beyond can have a seat: each takes at least one worker
        types, workers = seat_in_order(seats, view.speed, view.type, view.workers, room)
        double_while_it_saves(seats, types, workers, view.speed, view.left, room)
        return allocation(seats, types, workers)


@njit(cache=True, nogil=True)
def double_while_it_saves(
    rows: IntArray, types: IntArray, workers: IntArray, speed: FloatArray, left: FloatArray, room: IntArray
) -> None:
    """Double the best job in place until nothing fits or nothing saves; gains are kept, one changes a round."""
    gains = np.empty(len(rows))
    for position in range(len(rows)):
        gains[position] = _saving(rows[position], types[position], workers[position], speed, left)
    while True:
        best, best_gain = -1, 0.0
        for position in range(len(rows)):
            if gains[position] > best_gain and workers[position] <= room[types[position]]:
                best, best_gain = position, gains[position]
        if best < 0:
            return
        room[types[best]] -= workers[best]
        workers[best] *= 2
        gains[best] = _saving(rows[best], types[best], workers[best], speed, left)


@njit(cache=True, nogil=True)
def _saving(row: int, kind: int, workers: int, speed: FloatArray, left: FloatArray) -> float:
    """Return the seconds that doubling saves, a worker added; 0 where it cannot be."""
    if workers == 0 or 2 * workers >= speed.shape[2] or speed[row, kind, 2 * workers] <= 0.0:
        return 0.0
    return float(left[row] / speed[row, kind, workers] - left[row] / speed[row, kind, 2 * workers]) / workers
