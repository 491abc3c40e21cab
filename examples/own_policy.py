"""A policy of one's own: whoever has the least work left goes first, on as many workers as are free.

dovetail simulate examples/workloads/two-jobs.json --policy examples/own_policy.py:LeastLeft
"""

import numpy as np

from dovetail.scheduler.view import Allocation, ClusterView, allocation


class LeastLeft:
    """Jobs in order of the work that is left, each on the type and the number of workers where it is fastest."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the type and workers of every job that should run; a job left out waits."""
        free = view.capacity.copy()
        types, workers = np.zeros_like(view.rows), np.zeros_like(view.rows)
        for place in np.argsort(view.left[view.rows], kind="stable"):
            speeds = view.speed[view.rows[place]].copy()  # [type, workers], 0 where the job cannot run
            for kind, room in enumerate(free):
                speeds[kind, room + 1 :] = 0.0
            kind, count = np.unravel_index(speeds.argmax(), speeds.shape)
            if speeds[kind, count] > 0:
                types[place], workers[place] = kind, count
                free[kind] -= count
        return allocation(view.rows, types, workers)
