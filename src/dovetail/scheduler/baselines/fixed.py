"""Fixed sizes: every job on n workers from its start to its end, in order of submission.

A job that may not use n takes the most it may use below n, or its least above. `n = 0` stands for the workers with
which each job is fastest, which is plain first in, first out.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.baselines.seats import start_in_order
from dovetail.scheduler.view import Allocation, ClusterView


class Fixed:
    """Every job on the same number of workers; nothing that runs is touched and nobody overtakes."""

    def __init__(self, size: int) -> None:
        """Give every job `size` workers."""
        self.size = size

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Keep what runs, then start waiting jobs in order until one does not fit."""
        room = view.capacity.copy()
        np.subtract.at(room, view.type[view.running], view.workers[view.running])
        rows, types, workers = start_in_order(view.rows, view.workers, view.speed, view.capacity, room, self.size)
        return Allocation(
            rows=np.concatenate((view.running, rows)),
            types=np.concatenate((view.type[view.running], types)),
            workers=np.concatenate((view.workers[view.running], workers)),
        )
