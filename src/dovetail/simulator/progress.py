"""Jobs in virtual time: what each has left, how fast it goes, and when it will be done."""

from __future__ import annotations

import heapq

import numpy as np

from dovetail.scheduler.cluster import Cluster, Start
from dovetail.scheduler.view import Allocation
from dovetail.simulator.metrics import Change


class Progress:
    """The work of a cluster's jobs.

    While a job runs, what it has left is `left_at_start - rate * (now - ready)`, so its end is known when it starts and
    does not depend on how often anybody looks.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Set up with nothing done."""
        table = cluster.table
        count = len(table.jobs)
        self.cluster = cluster
        self.left = table.work.copy()
        self.rate = np.zeros(count)
        self.ready_s = np.zeros(count)
        self.first_start_s = np.full(count, np.nan)
        self.finish_s = np.full(count, np.nan)
        self.changes: list[Change] = []
        self._left_at_start = table.work.copy()
        self._ends: list[tuple[float, int, int]] = []

    def next_end_s(self) -> float:
        """Return when the next running job will be done, or infinity."""
        while self._ends and not self._still_holds(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else np.inf

    def _still_holds(self, end: tuple[float, int, int]) -> bool:
        """Say whether the start that an end was worked out for is the one that still runs."""
        _, start, row = end
        return bool(self.cluster.workers[row] > 0 and self.cluster.starts[row] == start)

    def advance(self, now_s: float) -> None:
        """Bring what running jobs have left and have held up to date."""
        self.cluster.advance(now_s)
        rows = self.cluster.running
        worked_s = np.maximum(now_s - self.ready_s[rows], 0.0)
        self.left[rows] = np.maximum(self._left_at_start[rows] - self.rate[rows] * worked_s, 0.0)

    def finish_due(self, now_s: float) -> list[int]:
        """End the jobs that are done now, and return them."""
        done = []
        while self.next_end_s() <= now_s:
            _, _, row = heapq.heappop(self._ends)
            self._note_stop(row, now_s)
            self.cluster.finish(row, now_s)
            self.left[row] = 0.0
            self.finish_s[row] = now_s
            done.append(row)
        return done

    def stop(self, rows: list[int], now_s: float) -> None:
        """Take the workers from jobs that keep what they have done."""
        for row in rows:
            self._note_stop(row, now_s)
            self.cluster.let_go(row, now_s)

    def apply(self, wanted: Allocation, now_s: float) -> int:
        """Make an allocation hold from now on; return how many jobs it started."""
        stops, starts = self.cluster.changes(wanted)
        moved = [start.row for start in starts if self.cluster.workers[start.row] > 0]
        table = self.cluster.table
        resized = {start.row for start in starts if start.kind == self.cluster.type[start.row]}
        self.stop([*stops, *moved], now_s)
        for start in starts:
            pays_s = table.resize_s if start.row in resized else table.restart_s
            self._start(start, now_s, float(pays_s[start.row]))
        return len(starts)

    def _start(self, start: Start, now_s: float, pays_s: float) -> None:
        """Give a job workers; it pays for its start, or for the change of its size, first."""
        row, table = start.row, self.cluster.table
        tight = self.cluster.hold(start, now_s)
        source = table.speed if start.batch < 0 else table.batch_speed[start.batch]
        self.rate[row] = source[row, start.kind, start.workers] * (1.0 if tight else table.spread_speed[row])
        self.ready_s[row] = now_s + pays_s
        self._left_at_start[row] = self.left[row]
        if np.isnan(self.first_start_s[row]):
            self.first_start_s[row] = now_s
        end_s = self.ready_s[row] + self.left[row] / self.rate[row]
        heapq.heappush(self._ends, (float(end_s), int(self.cluster.starts[row]), row))
        batch = table.batch_sizes[start.batch] if start.batch >= 0 else None
        self.changes.append(
            Change(
                t_s=float(now_s),
                job=table.jobs[row].id,
                type=table.types[start.kind],
                workers=start.workers,
                batch=batch,
            )
        )

    def _note_stop(self, row: int, now_s: float) -> None:
        """Write down that a job's workers are taken, and let it stand still."""
        table = self.cluster.table
        name = table.types[int(self.cluster.type[row])]
        self.changes.append(Change(t_s=float(now_s), job=table.jobs[row].id, type=name, workers=0))
        self.rate[row] = 0.0
