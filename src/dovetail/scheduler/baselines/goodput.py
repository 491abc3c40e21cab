"""Goodput, in the manner of Pollux and Sia: useful speed, whatever the work left.

Goodput is speed times statistical efficiency, with the batch size that makes it greatest where a job gives several.
Over all (type, workers) at once the allocation with the least

    sum_j (r G_j / G_j,least) ** POWER,     a job that waits counting `WAITING`

is found exactly. G_j,least is the job's goodput on its least workers, and r discounts a change by what it costs at
the job's age: r = age / (age + restart). Nothing is known of the work that is left.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.allocate import JobOptions, best_choice
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray

POWER = -0.5
WAITING = 1.3
"""What a waiting job counts, against 1 for one on its least workers."""


class Goodput:
    """The best sum of (powers of) goodput."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the allocation of greatest goodput, with a batch size where jobs give some."""
        speeds, batches = _best_batches(view)
        rows = view.rows
        goodput = speeds[:, :, 1:]
        least = np.where(goodput > 0, goodput, np.inf).min(axis=(1, 2))
        keeps = np.zeros(goodput.shape, bool)
        runs = np.flatnonzero(view.workers[rows] > 0)
        keeps[runs, view.type[rows[runs]], view.workers[rows[runs]] - 1] = True
        age_s = now_s - view.submit_s[rows] + 60.0
        change_s = np.where(view.workers[rows] > 0, view.resize_s[rows], view.restart_s[rows])
        discount = np.where(keeps, 1.0, (age_s / (age_s + change_s))[:, None, None])
        with np.errstate(divide="ignore"):
            loss = (discount * goodput / least[:, None, None]) ** POWER
        worth = view.weight[rows][:, None, None] * (WAITING - loss)
        usable = (goodput > 0) & (worth > 0) & (np.arange(1, speeds.shape[2]) <= view.capacity[None, :, None])
        options = _options(worth, usable)
        chosen = best_choice(options, view.capacity)
        given = np.flatnonzero(chosen >= 0)
        types, workers = options.types[chosen[given]], options.workers[chosen[given]]
        return Allocation(
            rows=rows[given],
            types=types,
            workers=workers,
            batches=batches[given, types, workers] if len(given) else None,
        )


def _best_batches(view: ClusterView) -> tuple[FloatArray, IntArray]:
    """Return the best goodput of each (job, type, workers) and the batch that gives it (-1 = the job's own)."""
    speeds = view.speed[view.rows]
    batches = np.full(speeds.shape, -1, np.int64)
    for position, other in enumerate(view.batch_speed):
        better = other[view.rows] > speeds
        speeds = np.where(better, other[view.rows], speeds)
        batches[better] = position
    return speeds, batches


def _options(worth: FloatArray, usable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> JobOptions:
    """Return the usable options, flat; a size worth no more than a smaller one of its type is left out."""
    masked = np.where(usable, worth, -np.inf)
    before = np.maximum.accumulate(masked, axis=2)
    better = usable.copy()
    better[:, :, 1:] &= masked[:, :, 1:] > before[:, :, :-1]
    jobs, types, sizes = np.nonzero(better)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(jobs, minlength=len(worth)))))
    return JobOptions(first=first, types=types, workers=sizes + 1, values=worth[jobs, types, sizes])
