"""The cluster in virtual time: what every job holds, what it has done, and when it will be done."""

from __future__ import annotations

import heapq

import numpy as np

from dovetail.errors import DovetailError
from dovetail.scheduler.view import Allocation, FloatArray, IntArray
from dovetail.simulator.metrics import Change
from dovetail.simulator.placement import TypePlacement
from dovetail.simulator.table import JobTable


class ClusterState:
    """Columns of a running simulation.

    While a job runs, what it has left is `left_at_start - rate * (now - ready)`, so its end is known when it starts and
    does not depend on how often anybody looks.
    """

    def __init__(self, table: JobTable, placed: list[TypePlacement] | None) -> None:
        """Set up with nothing arrived; `placed` tracks nodes where somebody cares which."""
        count = len(table.jobs)
        self.table = table
        self.placed = placed
        self.capacity = table.capacity.copy()
        self.left = table.work.copy()
        self.type = np.full(count, -1, np.int64)
        self.workers = np.zeros(count, np.int64)
        self.batch = np.full(count, -1, np.int64)
        self.started_s = np.full(count, np.nan)
        self.stopped_s = table.submit_s.copy()
        self.attained = np.zeros(count)
        self.starts = np.zeros(count, np.int64)
        self.first_start_s = np.full(count, np.nan)
        self.finish_s = np.full(count, np.nan)
        self.rate = np.zeros(count)
        self.ready_s = np.zeros(count)
        self.left_at_start = table.work.copy()
        self.attained_at_start = np.zeros(count)
        self.changes: list[Change] = []
        self._active = np.empty(count, np.int64)
        self._num_active = 0
        self.running = np.empty(0, np.int64)
        self._ends: list[tuple[float, int, int]] = []
        self._mark = np.zeros(count, np.int64)
        self._tick = 0

    @property
    def active(self) -> IntArray:
        """Rows that have arrived and are not done, in order of submission."""
        return self._active[: self._num_active]

    def arrive(self, row: int) -> None:
        """Add a job to those that are there."""
        self._active[self._num_active] = row
        self._num_active += 1

    def next_end_s(self) -> float:
        """Return when the next running job will be done, or infinity."""
        while self._ends and not self._still_holds(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else np.inf

    def _still_holds(self, end: tuple[float, int, int]) -> bool:
        """Say whether the start that an end was worked out for is the one that still runs."""
        _, start, row = end
        return bool(self.workers[row] > 0 and self.starts[row] == start)

    def advance(self, now_s: float) -> None:
        """Bring what running jobs have left and have held up to date."""
        rows = self.running
        worked_s = np.maximum(now_s - self.ready_s[rows], 0.0)
        self.left[rows] = np.maximum(self.left_at_start[rows] - self.rate[rows] * worked_s, 0.0)
        self.attained[rows] = self.attained_at_start[rows] + self.workers[rows] * (now_s - self.started_s[rows])

    def finish_due(self, now_s: float) -> list[int]:
        """End the jobs that are done now, and return them."""
        done = []
        while self.next_end_s() <= now_s:
            _, _, row = heapq.heappop(self._ends)
            self._let_go(row, now_s)
            self.left[row] = 0.0
            self.finish_s[row] = now_s
            done.append(row)
            place = int(np.searchsorted(self.active, row))
            self._active[place : self._num_active - 1] = self._active[place + 1 : self._num_active]
            self._num_active -= 1
        if done:
            self.running = self.running[self.workers[self.running] > 0]
        return done

    def stop(self, rows: list[int], now_s: float) -> None:
        """Take the workers from jobs that keep what they have done."""
        for row in rows:
            self._let_go(row, now_s)
        self.running = self.running[self.workers[self.running] > 0]

    def apply(self, wanted: Allocation, now_s: float) -> int:
        """Make an allocation hold from now on; return how many jobs it started."""
        rows, types, workers = wanted.rows, wanted.types, wanted.workers
        batches = np.full(len(rows), -1, np.int64) if wanted.batches is None else wanted.batches
        self._tick += 1
        self._check(rows, types, workers, batches)
        self._mark[rows] = self._tick
        changed = (self.workers[rows] != workers) | (self.type[rows] != types) | (self.batch[rows] != batches)
        dropped = self.running[self._mark[self.running] != self._tick]
        starting = np.flatnonzero(changed)
        if not len(dropped) and not len(starting):
            return 0
        for row in dropped:
            self._let_go(int(row), now_s)
        for position in starting:
            if self.workers[rows[position]] > 0:
                self._let_go(int(rows[position]), now_s)
        for position in starting:
            self._start(
                int(rows[position]), int(types[position]), int(workers[position]), int(batches[position]), now_s
            )
        self.running = np.sort(rows)
        return len(starting)

    def _check(self, rows: IntArray, types: IntArray, workers: IntArray, batches: IntArray) -> None:
        """Refuse an allocation that no cluster could carry out: it is the policy's mistake, so say which."""
        used = np.bincount(types, weights=workers, minlength=len(self.capacity)) if len(rows) else np.zeros(1)
        fits = bool((used <= self.capacity[: len(used)]).all())
        arrived = bool(np.isnan(self.finish_s[rows]).all()) and (not len(rows) or self.is_active(rows))
        twice = len(np.unique(rows)) < len(rows)
        in_table = bool((workers > 0).all()) and bool((workers < self.table.speed.shape[2]).all())
        if (
            fits
            and arrived
            and not twice
            and in_table
            and bool((self._speeds(rows, types, workers, batches) > 0).all())
        ):
            return
        reason = (
            f"gave out {used.astype(int).tolist()} of {self.capacity.tolist()} workers"
            if not fits
            else "gave workers to a job that cannot use them"
        )
        raise DovetailError(f"the policy {reason}", hint="this is a mistake in the policy, not in the workload")

    def is_active(self, rows: IntArray) -> bool:
        """Say whether all rows have arrived and are not done."""
        places = np.searchsorted(self.active, rows)
        return bool((places < self._num_active).all()) and bool((self.active[places] == rows).all())

    def _speeds(self, rows: IntArray, types: IntArray, workers: IntArray, batches: IntArray) -> FloatArray:
        """Return the true speed of each of an allocation's entries, tightly placed."""
        speeds = self.table.speed[rows, types, workers]
        for position in np.flatnonzero(batches >= 0):
            chosen = self.table.batch_speed[int(batches[position])]
            speeds[position] = chosen[rows[position], types[position], workers[position]]
        return speeds

    def _start(self, row: int, kind: int, workers: int, batch: int, now_s: float) -> None:
        """Give a job workers; it pays its restart first."""
        tight = self.placed is None or self.placed[kind].place(row, workers)
        source = self.table.speed if batch < 0 else self.table.batch_speed[batch]
        self.rate[row] = source[row, kind, workers] * (1.0 if tight else self.table.spread_speed[row])
        self.type[row], self.workers[row], self.batch[row] = kind, workers, batch
        self.started_s[row], self.ready_s[row] = now_s, now_s + self.table.restart_s[row]
        self.left_at_start[row], self.attained_at_start[row] = self.left[row], self.attained[row]
        self.starts[row] += 1
        if np.isnan(self.first_start_s[row]):
            self.first_start_s[row] = now_s
        end_s = self.ready_s[row] + self.left[row] / self.rate[row]
        heapq.heappush(self._ends, (float(end_s), int(self.starts[row]), row))
        self._note(row, workers, now_s)

    def _let_go(self, row: int, now_s: float) -> None:
        """Take the workers from a job."""
        if self.placed is not None:
            self.placed[int(self.type[row])].release(row)
        self._note(row, 0, now_s)
        self.type[row], self.workers[row], self.batch[row], self.rate[row] = -1, 0, -1, 0.0
        self.stopped_s[row] = now_s

    def _note(self, row: int, workers: int, now_s: float) -> None:
        """Write down a change."""
        batch = int(self.batch[row])
        self.changes.append(
            Change(
                t_s=float(now_s),
                job=self.table.jobs[row].id,
                type=self.table.types[int(self.type[row])],
                workers=workers,
                batch=self.table.batch_sizes[batch] if batch >= 0 and workers else None,
            )
        )
