"""Small makers of real values for tests of policies."""

import numpy as np

from dovetail.scheduler.view import ClusterView

CURVE = {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.9}


def filled(curve):
    """Return a curve at every number of workers between its first and its last, linear between the given ones."""
    counts = range(min(curve), max(curve) + 1)
    return {count: float(np.interp(count, list(curve), list(curve.values()))) for count in counts}


def make_view(curves, *, capacity=(8,), left=None, held=None, now_s=0.0, started_s=None, node_workers=None, **columns):
    """Return a view of jobs whose speeds are `curves`: for each job a dict of workers to speed, or a list of such.

    `held` gives (type, workers) of each job; None = it waits.
    """
    per_job = [curve if isinstance(curve, list) else [curve] for curve in curves]
    width = max(max(curve) for kinds in per_job for curve in kinds if curve)
    count, kinds = len(per_job), len(capacity)
    speed = np.zeros((count, kinds, width + 1))
    for row, curves_of_job in enumerate(per_job):
        for kind, curve in enumerate(curves_of_job):
            for workers, value in filled(curve).items() if curve else ():
                if workers <= capacity[kind]:
                    speed[row, kind, workers] = value
    held = held or [None] * count
    workers = np.array([0 if entry is None else entry[1] for entry in held], np.int64)
    rows = np.arange(count)
    given = {
        "submit_s": np.arange(count) * 1e-3,
        "restart_s": np.full(count, 10.0),
        "weight": np.ones(count),
        "attained": np.zeros(count),
        "starts": (workers > 0).astype(np.int64),
        "stopped_s": np.zeros(count),
        "left_error": np.zeros(count),
        "speed_error": np.zeros(count),
    }
    given.update({name: np.asarray(value, float) for name, value in columns.items()})
    given.setdefault("resize_s", given["restart_s"])
    return ClusterView(
        capacity=np.array(capacity, np.int64),
        node_workers=np.array(node_workers or [4] * kinds, np.int64),
        rows=rows,
        running=rows[workers > 0],
        speed=speed,
        left=np.array(left if left is not None else [100.0] * count, float),
        type=np.array([-1 if entry is None else entry[0] for entry in held], np.int64),
        workers=workers,
        started_s=np.full(count, -1e9) if started_s is None else np.array(started_s, float),
        **given,
    )


def sizes(allocation, count):
    """Return the workers of each of `count` jobs."""
    found = [0] * count
    for row, workers in zip(allocation.rows.tolist(), allocation.workers.tolist(), strict=True):
        found[row] = workers
    return found


def kinds_of(allocation):
    """Return the type of every job that was given workers."""
    return dict(zip(allocation.rows.tolist(), allocation.types.tolist(), strict=True))
