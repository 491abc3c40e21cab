"""Try first, then double: every new job runs a while on 1, 2, 4 and 8 workers before it is sized.

A job's trial on a size counts once it has worked `TRIAL_S` there. Jobs on trial come first, in order of submission;
the others are sized by doubling on what is left. Each trial is a start, so a job pays for what it tells.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.baselines.growing import grow_while_it_saves
from dovetail.scheduler.baselines.seats import seat_in_order
from dovetail.scheduler.view import Allocation, ClusterView, allocation

SIZES = (1, 2, 4, 8)
TRIAL_S = 150.0
"""Seconds of work on each size before its speed counts as measured."""


class Exploratory:
    """Doubling, after a trial of each size."""

    def __init__(self) -> None:
        """Start with nothing tried."""
        self._tried: dict[int, int] = {}

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the trials that fit, and doubling for the rest."""
        room = view.capacity.copy()
        rows: list[int] = []
        types: list[int] = []
        workers: list[int] = []
        others = []
        for row in view.rows.tolist():
            size = self._next_size(view, row, now_s)
            if size == 0:
                others.append(row)
                continue
            kind = self._type_for(view, row, size, room)
            if kind >= 0:
                room[kind] -= size
                rows.append(row)
                types.append(kind)
                workers.append(size)
            else:
                others.append(row)  # no room for its trial now: it works on what is left until there is
            if room.sum() <= 0:
                break
        seats = np.array(others[: int(room.sum())], np.int64)
        seat_types, seat_workers = seat_in_order(seats, view.speed, view.type, view.workers, room)
        grow_while_it_saves(seats, seat_types, seat_workers, view.speed, view.left, room, True)
        return allocation(
            np.concatenate((np.array(rows, np.int64), seats)),
            np.concatenate((np.array(types, np.int64), seat_types)),
            np.concatenate((np.array(workers, np.int64), seat_workers)),
        )

    def _next_size(self, view: ClusterView, row: int, now_s: float) -> int:
        """Return the size a job should try now, or 0 when it has tried all it may use."""
        stage = self._tried.get(row, 0)
        while stage < len(SIZES):
            size = SIZES[stage]
            may_use = size < view.speed.shape[2] and bool(
                ((view.speed[row, :, size] > 0) & (view.capacity >= size)).any()
            )
            on_trial = int(view.workers[row]) == size
            if may_use and not (on_trial and now_s >= view.started_s[row] + view.restart_s[row] + TRIAL_S):
                break
            stage += 1
        self._tried[row] = stage
        return SIZES[stage] if stage < len(SIZES) else 0

    def _type_for(
        self, view: ClusterView, row: int, size: int, room: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> int:
        """Return the type a trial runs on: the one the job holds where it can, else its fastest with room; -1: none."""
        speeds = np.where(room >= size, view.speed[row, :, size], 0.0)
        held = int(view.type[row])
        if held >= 0 and speeds[held] > 0:
            return held
        return int(np.argmax(speeds)) if speeds.max() > 0 else -1
