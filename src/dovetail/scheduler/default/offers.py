"""What each job could be given, and how fast it would go with it.

An offer is a type and a number of workers. One that is no faster than a smaller offer of its type is left out, unless
the job holds it. Where a job has other batch sizes, its speed is the useful one: the best of all its batch sizes,
statistical efficiency included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dovetail.scheduler.view import ClusterView, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Offers of the view's rows, flat and grouped by job: job j has those from `first[j]` up to `first[j + 1]`."""

    first: IntArray
    types: IntArray
    workers: IntArray
    speeds: FloatArray
    batches: IntArray
    """For each offer the batch size that is fastest: a position in `batch_speed`, or -1 for the job's own."""
    held: IntArray
    """For each job the offer it holds, -1 while it waits."""

    def most(self, values: FloatArray) -> FloatArray:
        """Return the greatest of a value over each job's offers, of which each has one at least."""
        greatest: FloatArray = np.maximum.reduceat(values, self.first[:-1])
        return greatest

    def jobs(self) -> IntArray:
        """Return for each offer the position of its job."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def can_run(view: ClusterView) -> IntArray:
    """Return the rows that could be given anything: all of them, unless too many nodes are down."""
    fits = np.arange(view.speed.shape[2]) <= view.capacity[:, None]
    rows: IntArray = view.rows[((view.speed[view.rows] > 0) & fits).any(axis=(1, 2))]
    return rows


def offers_of(view: ClusterView, *, all_sizes: bool) -> Offers:
    """Return what the jobs of a view could be given: every size, or only the sensible ones.

    Sensible are powers of two, whole nodes, the least and the most a job may use, and what it holds.
    """
    batch_speed = np.stack(view.batch_speed) if view.batch_speed else np.empty((0, 1, 1, 1))
    found = list_offers(
        view.rows, view.speed, batch_speed, view.capacity, view.node_workers, view.type, view.workers, all_sizes
    )
    first, types, workers, speeds, batches, held = found
    return Offers(first=first, types=types, workers=workers, speeds=speeds, batches=batches, held=held)


@njit(cache=True, nogil=True)
def is_sensible(size: int, node_workers: int, least: int, most: int) -> bool:
    """Say whether a size is a power of two, a number of whole nodes, or the least or the most a job may use."""
    return size & (size - 1) == 0 or size % node_workers == 0 or size in (least, most)


@njit(cache=True, nogil=True)
def best_batch(speed: FloatArray, batch_speed: FloatArray, row: int, kind: int, size: int) -> tuple[float, int]:
    """Return a job's useful speed on a size and the batch size that gives it, -1 for its own."""
    best, batch = speed[row, kind, size], -1
    for position in range(len(batch_speed)):
        if batch_speed[position, row, kind, size] > best:
            best, batch = batch_speed[position, row, kind, size], position
    return best, batch


@njit(cache=True, nogil=True)
def list_offers(
    rows: IntArray,
    speed: FloatArray,
    batch_speed: FloatArray,
    capacity: IntArray,
    node_workers: IntArray,
    held_type: IntArray,
    held_workers: IntArray,
    all_sizes: bool,
) -> tuple[IntArray, IntArray, IntArray, FloatArray, IntArray, IntArray]:
    """Return the columns of `Offers`."""
    room = len(rows) * len(capacity) * speed.shape[2]
    first, held = np.zeros(len(rows) + 1, np.int64), np.full(len(rows), -1, np.int64)
    types, workers, speeds = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room)
    batches = np.empty(room, np.int64)
    count = 0
    for position in range(len(rows)):
        row = rows[position]
        for kind in range(len(capacity)):
            least, most = 0, 0
            for size in range(1, min(capacity[kind], speed.shape[2] - 1) + 1):
                if speed[row, kind, size] > 0.0:
                    least = least if least > 0 else size
                    most = size
            fastest = 0.0
            for size in range(max(least, 1), most + 1):
                holds = held_workers[row] == size and held_type[row] == kind
                if not (all_sizes or holds or is_sensible(size, node_workers[kind], least, most)):
                    continue
                there, batch = best_batch(speed, batch_speed, row, kind, size)
                if there > fastest or (holds and there > 0.0):
                    fastest = max(fastest, there)
                    types[count], workers[count], speeds[count], batches[count] = kind, size, there, batch
                    held[position] = count if holds else held[position]
                    count += 1
        first[position + 1] = count
    return first, types[:count], workers[:count], speeds[:count], batches[:count], held
