"""Who gets a seat: the part that policies blind to types share.

They size jobs on one type, so each job is given its type first. A running job stays where it is; a waiting one takes
the type on which its least number of workers is fastest, among those with room.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.view import FloatArray, IntArray


@njit(cache=True, nogil=True)
def fewest_workers(speed: FloatArray, row: int, kind: int, room: int) -> int:
    """Return the least workers that a job may use of a type within `room`, or 0."""
    for workers in range(1, min(room, speed.shape[2] - 1) + 1):
        if speed[row, kind, workers] > 0.0:
            return workers
    return 0


@njit(cache=True, nogil=True)
def fastest_workers(speed: FloatArray, row: int, kind: int, room: int) -> int:
    """Return the fewest workers within `room` with which a job is fastest on a type, or 0."""
    best, best_speed = 0, 0.0
    for workers in range(1, min(room, speed.shape[2] - 1) + 1):
        if speed[row, kind, workers] > best_speed:
            best, best_speed = workers, speed[row, kind, workers]
    return best


@njit(cache=True, nogil=True)
def seat_in_order(
    order: IntArray, speed: FloatArray, held_type: IntArray, held_workers: IntArray, room: IntArray
) -> tuple[IntArray, IntArray]:
    """Give each job of `order` its least workers while there is room, and take them from `room`.

    A job that holds workers keeps its type where that has room. Returns types and workers, 0 workers for those without
    a seat. Stops looking once every type is full.
    """
    types = np.full(len(order), -1, np.int64)
    workers = np.zeros(len(order), np.int64)
    for position in range(len(order)):
        row = order[position]
        best_speed = 0.0
        for kind in range(len(room)):
            if room[kind] <= 0 or (held_workers[row] > 0 and kind != held_type[row]):
                continue
            least = fewest_workers(speed, row, kind, room[kind])
            if least > 0 and speed[row, kind, least] > best_speed:
                best_speed = speed[row, kind, least]
                types[position], workers[position] = kind, least
        if workers[position] > 0:
            room[types[position]] -= workers[position]
            if room.sum() <= 0:
                break
    return types, workers


@njit(cache=True, nogil=True)
def wanted_workers(speed: FloatArray, row: int, kind: int, capacity: int, size: int) -> int:
    """Return the workers a job asks for: the most it may use up to `size`, else its least; `size` 0 = the fastest."""
    if size == 0:
        return fastest_workers(speed, row, kind, capacity)
    for workers in range(min(size, capacity, speed.shape[2] - 1), 0, -1):
        if speed[row, kind, workers] > 0.0:
            return workers
    return fewest_workers(speed, row, kind, capacity)


@njit(cache=True, nogil=True)
def start_in_order(
    order: IntArray, held: IntArray, speed: FloatArray, capacity: IntArray, room: IntArray, size: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Start those of `order` that hold nothing, each on its wanted workers, until one does not fit."""
    started = np.empty(len(order), np.int64)
    types = np.empty(len(order), np.int64)
    workers = np.empty(len(order), np.int64)
    count = 0
    for row in order:
        if held[row] > 0:
            continue
        if room.sum() <= 0:
            break
        best_type, best_workers, best_speed = -1, 0, 0.0
        for kind in range(len(capacity)):
            wanted = wanted_workers(speed, row, kind, capacity[kind], size)
            if 0 < wanted <= room[kind] and speed[row, kind, wanted] > best_speed:
                best_type, best_workers, best_speed = kind, wanted, speed[row, kind, wanted]
        if best_type < 0:
            break
        started[count], types[count], workers[count] = row, best_type, best_workers
        room[best_type] -= best_workers
        count += 1
    return started[:count], types[:count], workers[:count]
