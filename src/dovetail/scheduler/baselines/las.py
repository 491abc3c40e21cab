"""Least attained service, in two queues: who has held the fewest worker-seconds comes first.

Jobs that have held less than `THRESHOLD` worker-seconds form the first queue, the others the second; inside a queue
the order of submission decides, so that jobs of one age do not take turns for ever. In that order every job gets its
least workers, then those with a seat are doubled in turn while that makes them faster. Nothing is known of the work
that is left: this is what can be done without.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.baselines.seats import seat_in_order
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray, allocation

THRESHOLD = 3600.0
"""Worker-seconds after which a job moves to the second queue: one hour of one worker."""


class LeastAttained:
    """Two queues by attained service."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return seats for those that have had least, the rest of the workers shared among them."""
        order = view.rows[np.argsort(view.attained[view.rows] >= THRESHOLD, kind="stable")]
        room = view.capacity.copy()
        seats = order[: int(room.sum())]
        types, workers = seat_in_order(seats, view.speed, view.type, view.workers, room)
        double_in_turn(seats, types, workers, view.speed, room)
        return allocation(seats, types, workers)


@njit(cache=True, nogil=True)
def double_in_turn(rows: IntArray, types: IntArray, workers: IntArray, speed: FloatArray, room: IntArray) -> None:
    """Double seated jobs in place, one after the other, as long as somebody gets faster and there is room."""
    changed = True
    while changed:
        changed = False
        for position in range(len(rows)):
            held, kind = workers[position], types[position]
            if held == 0 or 2 * held >= speed.shape[2] or held > room[kind]:
                continue
            if speed[rows[position], kind, 2 * held] > speed[rows[position], kind, held]:
                room[kind] -= held
                workers[position] = 2 * held
                changed = True
