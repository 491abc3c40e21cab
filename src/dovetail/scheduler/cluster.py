"""Who holds which workers, for whoever drives a policy: the columns of a view, and what an allocation changes.

A driver (virtual time, or real processes) tells a cluster what happens: a job arrives, is given workers, loses them, is
done, a node goes down. The cluster keeps the columns that policies look at, and says of an allocation whether it can be
and which jobs it stops and starts. It knows no clock: every moment is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dovetail.errors import DovetailError
from dovetail.scheduler.job_table import JobTable
from dovetail.scheduler.placement import TypePlacement
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray


class Knowledge(Protocol):
    """What is believed of every job, by row, with relative errors (0 = known)."""

    left: FloatArray
    left_error: FloatArray
    speed: FloatArray
    speed_error: FloatArray
    batch_speed: tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """A job that is to be given workers; it is stopped first where it holds others."""

    row: int
    kind: int
    workers: int
    batch: int


class Cluster:
    """What every job of a table holds, and what there is to hold."""

    def __init__(self, table: JobTable, placed: list[TypePlacement] | None = None) -> None:
        """Set up with nothing arrived; `placed` tracks nodes where somebody cares which."""
        count = len(table.jobs)
        self.table = table
        self.placed = placed
        self.capacity = table.capacity.copy()
        self.type = np.full(count, -1, np.int64)
        self.workers = np.zeros(count, np.int64)
        self.batch = np.full(count, -1, np.int64)
        self.started_s = np.full(count, np.nan)
        self.stopped_s = table.submit_s.copy()
        self.attained = np.zeros(count)
        self.starts = np.zeros(count, np.int64)
        self.running = np.empty(0, np.int64)
        self._attained_at_start = np.zeros(count)
        self._active = np.empty(count, np.int64)
        self._num_active = 0

    @property
    def active(self) -> IntArray:
        """Rows that have arrived and are not done, in order of submission."""
        return self._active[: self._num_active]

    def is_active(self, rows: IntArray) -> bool:
        """Say whether all rows have arrived and are not done."""
        places = np.searchsorted(self.active, rows)
        return bool((places < self._num_active).all()) and bool((self.active[places] == rows).all())

    def arrive(self, row: int) -> None:
        """Add a job to those that are there."""
        self._active[self._num_active] = row
        self._num_active += 1

    def advance(self, now_s: float) -> None:
        """Bring what running jobs have held up to date."""
        rows = self.running
        self.attained[rows] = self._attained_at_start[rows] + self.workers[rows] * (now_s - self.started_s[rows])

    def finish(self, row: int, now_s: float) -> None:
        """Take a job away that is done."""
        self.let_go(row, now_s)
        place = int(np.searchsorted(self.active, row))
        self._active[place : self._num_active - 1] = self._active[place + 1 : self._num_active]
        self._num_active -= 1

    def hold(self, start: JobStart, now_s: float) -> bool:
        """Give a job workers; return whether it stands as tight as can be."""
        row = start.row
        tight = self.placed is None or self.placed[start.kind].place(row, start.workers)
        self.type[row], self.workers[row], self.batch[row] = start.kind, start.workers, start.batch
        self.started_s[row], self._attained_at_start[row] = now_s, self.attained[row]
        self.starts[row] += 1
        self.running = np.insert(self.running, np.searchsorted(self.running, row), row)
        return tight

    def let_go(self, row: int, now_s: float) -> None:
        """Take the workers from a job."""
        if self.placed is not None:
            self.placed[int(self.type[row])].release(row)
        self.type[row], self.workers[row], self.batch[row] = -1, 0, -1
        self.stopped_s[row] = now_s
        self.running = np.delete(self.running, np.searchsorted(self.running, row))

    def changes(self, wanted: Allocation) -> tuple[list[int], list[JobStart]]:
        """Return the jobs that an allocation stops for good and those it starts, or refuse it."""
        batches = np.full(len(wanted.rows), -1, np.int64) if wanted.batches is None else wanted.batches
        self._check(wanted, batches)
        rows, types, workers = wanted.rows, wanted.types, wanted.workers
        changed = (self.workers[rows] != workers) | (self.type[rows] != types) | (self.batch[rows] != batches)
        stops = self.running[~np.isin(self.running, rows, assume_unique=True)]
        starts = [
            JobStart(
                row=int(rows[place]), kind=int(types[place]), workers=int(workers[place]), batch=int(batches[place])
            )
            for place in np.flatnonzero(changed)
        ]
        return stops.tolist(), starts

    def view(self, believed: Knowledge) -> ClusterView:
        """Return what a policy sees, the speeds and the work left being what is believed of them."""
        return ClusterView(
            capacity=self.capacity,
            node_workers=self.table.node_workers,
            rows=self.active,
            running=self.running,
            speed=believed.speed,
            left=believed.left,
            left_error=believed.left_error,
            speed_error=believed.speed_error,
            submit_s=self.table.submit_s,
            restart_s=self.table.restart_s,
            resize_s=self.table.resize_s,
            weight=self.table.weight,
            type=self.type,
            workers=self.workers,
            started_s=self.started_s,
            attained=self.attained,
            starts=self.starts,
            stopped_s=self.stopped_s,
            batch_speed=believed.batch_speed,
        )

    def speeds(self, rows: IntArray, types: IntArray, workers: IntArray, batches: IntArray) -> FloatArray:
        """Return the table's speed of each of an allocation's entries, tightly placed."""
        speeds = self.table.speed[rows, types, workers]
        for position in np.flatnonzero(batches >= 0):
            chosen = self.table.batch_speed[int(batches[position])]
            speeds[position] = chosen[rows[position], types[position], workers[position]]
        return speeds

    def _check(self, wanted: Allocation, batches: IntArray) -> None:
        """Refuse an allocation that no cluster could carry out: it is the policy's mistake, so say which."""
        reason = self._mistake(wanted, batches)
        if reason:
            raise DovetailError(f"the policy {reason}", hint="this is a mistake in the policy, not in the workload")

    def _mistake(self, wanted: Allocation, batches: IntArray) -> str:
        """Return what is wrong with an allocation in words; nothing where it can be carried out."""
        rows, types, workers = wanted.rows, wanted.types, wanted.workers
        if not bool(((types >= 0) & (types < len(self.capacity))).all()):
            known = ", ".join(f"{number} ({name})" for number, name in enumerate(self.table.types))
            return f"names a type that there is not: types are {known}"
        used = np.bincount(types, weights=workers, minlength=len(self.capacity)).astype(int)
        if bool((used > self.capacity).any()):
            each = zip(self.table.types, used.tolist(), self.capacity.tolist(), strict=True)
            return "gave out " + ", ".join(f"{count} of the {there} workers of `{name}`" for name, count, there in each)
        if len(np.unique(rows)) < len(rows) or (len(rows) and not self.is_active(rows)):
            return "names a job twice, or one that is not there: rows are those of `view.rows`"
        return self._useless(wanted, batches)

    def _useless(self, wanted: Allocation, batches: IntArray) -> str:
        """Return which job was given workers that it cannot use; nothing where all can."""
        rows, types, workers = wanted.rows, wanted.types, wanted.workers
        can_use = (workers > 0) & (workers < self.table.speed.shape[2])
        can_use[can_use] = self.speeds(rows[can_use], types[can_use], workers[can_use], batches[can_use]) > 0
        if bool(can_use.all()):
            return ""
        place = int(np.argmin(can_use))
        job, name = self.table.jobs[int(rows[place])], self.table.types[int(types[place])]
        span = job.workers_on(name)
        runs = f"runs on {span[0]} to {span[-1]} of them" if len(span) else "does not run there"
        return f"gave {int(workers[place])} workers of `{name}` to job `{job.id}`, which cannot use them: it {runs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """What a job holds now, and what it held before; seconds are of the driver's own clock."""

    type: str | None
    """None while it waits."""
    workers: int
    since_s: float
    """When it was given its workers, or when it was last stopped."""
    attained: float
    """Worker-seconds up to `since_s`."""
    starts: int


def cluster_as_found(
    table: JobTable, jobs: Sequence[FoundJob], now_s: float, *, taken: dict[str, int] | None = None
) -> Cluster:
    """Return the cluster with the table's jobs, all arrived, as they were found, in the table's order.

    `taken` are workers, by type, that somebody else holds for the moment.

    A driver of real jobs makes one for every decision, from what it keeps of them; columns, checks and changes are
    those that the simulator uses.
    """
    cluster = Cluster(table)
    for row, found in enumerate(jobs):
        cluster.arrive(row)
        cluster.attained[row], cluster.stopped_s[row] = found.attained, found.since_s
        cluster.starts[row] = found.starts
        if found.type is not None and found.workers > 0:
            kind = table.types.index(found.type)
            cluster.hold(JobStart(row=row, kind=kind, workers=found.workers, batch=-1), found.since_s)
            cluster.starts[row] = found.starts
    for name, workers in (taken or {}).items():
        kind = table.types.index(name)
        cluster.capacity[kind] = max(0, int(cluster.capacity[kind]) - workers)
    cluster.advance(now_s)
    return cluster
