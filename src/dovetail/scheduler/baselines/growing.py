"""Least workers for all, then more where they save the most: what doubling and adding one by one have in common.

Every job gets its least number of workers in order of submission; the rest queue. Then again and again the job with the
largest saving a worker,

    (Q / f(w) - Q / f(w + s)) / s,      Q the work left, f(w) the speed on w workers, s the step,

grows by a step, while workers last and the saving is positive. The step is w itself (doubling) or one.
"""

from __future__ import annotations

import heapq

from numba import njit

from dovetail.scheduler.baselines.seats import seat_in_order
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray, allocation


def grown(view: ClusterView, *, doubling: bool) -> Allocation:
    """Return the sizes that growth arrives at."""
    room = view.capacity.copy()
    seats = view.rows[: int(room.sum())]  # nobody beyond can have a seat: each takes at least one worker
    types, workers = seat_in_order(seats, view.speed, view.type, view.workers, room)
    grow_while_it_saves(seats, types, workers, view.speed, view.left, room, doubling)
    return allocation(seats, types, workers)


@njit(cache=True, nogil=True)
def grow_while_it_saves(
    rows: IntArray,
    types: IntArray,
    workers: IntArray,
    speed: FloatArray,
    left: FloatArray,
    room: IntArray,
    doubling: bool,
) -> None:
    """Let the best job grow in place until nothing fits or nothing saves; of equals the first.

    Gains wait in a heap. A job whose step does not fit now never will: room only shrinks, and its step stays.
    """
    waiting = [(0.0, 0)]
    waiting.clear()
    for position in range(len(rows)):
        gain = _saving(rows[position], types[position], workers[position], speed, left, doubling)
        if gain > 0.0:
            waiting.append((-gain, position))
    heapq.heapify(waiting)
    while waiting:
        best = heapq.heappop(waiting)[1]
        step = workers[best] if doubling else 1
        if step > room[types[best]]:
            continue
        room[types[best]] -= step
        workers[best] += step
        gain = _saving(rows[best], types[best], workers[best], speed, left, doubling)
        if gain > 0.0:
            heapq.heappush(waiting, (-gain, best))


@njit(cache=True, nogil=True)
def _saving(row: int, kind: int, workers: int, speed: FloatArray, left: FloatArray, doubling: bool) -> float:
    """Return the seconds that one step saves, a worker added; 0 where it cannot be."""
    step = workers if doubling else 1
    if workers == 0 or workers + step >= speed.shape[2] or speed[row, kind, workers + step] <= 0.0:
        return 0.0
    return float(left[row] / speed[row, kind, workers] - left[row] / speed[row, kind, workers + step]) / step
