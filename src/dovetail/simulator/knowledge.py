"""What a simulation tells its policy: the truth, or what somebody who only watches would know."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from dovetail.scheduler.cluster import Knowledge
from dovetail.scheduler.estimate.watching import Watching
from dovetail.scheduler.job_table import JobTable
from dovetail.scheduler.view import FloatArray
from dovetail.simulator.progress import VirtualJobs

KnowledgeName = Literal["oracle", "estimated"]

MEASURE_AFTER_S = 20.0
"""Seconds of work after which a speed counts as measured."""
NOISE = 0.03
"""The relative error of a measured speed."""


class Teller(Protocol):
    """Somebody who knows, and is brought up to date before every decision."""

    known: Knowledge

    def refresh(self, progress: VirtualJobs, arrived: list[int], done: list[int], now_s: float) -> None:
        """Take in what has happened since the last decision."""
        ...


class Truth:
    """Work left, speeds and batch sizes as they are."""

    def __init__(self, progress: VirtualJobs, table: JobTable | None = None) -> None:
        """Look at the simulation's own columns; `table` has the speeds where they are not those of the workload."""
        table = table or progress.cluster.table
        self.left = progress.left
        self.speed = table.speed
        self.left_error = np.zeros(len(progress.left))
        self.speed_error = np.zeros(len(progress.left))
        self.batch_speed = table.batch_speed


class Oracle:
    """The truth: work left and speeds are known exactly, for jobs that have never run too."""

    def __init__(self, progress: VirtualJobs, table: JobTable | None = None) -> None:
        """Know everything."""
        self.known: Knowledge = Truth(progress, table)

    def refresh(self, progress: VirtualJobs, arrived: list[int], done: list[int], now_s: float) -> None:
        """Do nothing: the columns are the simulation's own."""


class Onlooker:
    """Measures speeds with noise on sizes that have worked a while, and sees losses up to the work done."""

    def __init__(self, progress: VirtualJobs, *, seed: int, noise: float) -> None:
        """Start with nothing seen."""
        table = progress.cluster.table
        self.known: Knowledge = (watching := Watching(table))
        self._watching = watching
        self._draw = np.random.default_rng(seed)
        self._noise = noise
        self._measured_start = np.zeros(len(table.jobs), np.int64)
        self._points_seen = np.zeros(len(table.jobs), np.int64)
        self._ran: set[int] = set()
        """Who ran at the last look."""
        self._curves = [_loss_columns(job.loss.points) if job.loss is not None else None for job in table.jobs]

    def refresh(self, progress: VirtualJobs, arrived: list[int], done: list[int], now_s: float) -> None:
        """Measure what runs, learn from what is done, and look again at what every job has left."""
        cluster = progress.cluster
        news = False
        running = set(cluster.running.tolist())
        for row in sorted(running):
            news |= self._measure(progress, row, now_s)
            self._watch_loss(progress, row)
            news |= self._watching.worked(row, self._done(progress, row), float(cluster.attained[row]))
        for row in done:
            self._watching.finished(row, float(cluster.table.work[row]))
        stopped = self._ran - running - set(done)
        self._ran = running
        for row in cluster.active.tolist() if news or done else sorted({*running, *arrived, *stopped}):
            self._watching.estimate_left(row, self._done(progress, row), waits=row not in running)

    def _done(self, progress: VirtualJobs, row: int) -> float:
        return float(progress.cluster.table.work[row] - progress.left[row])

    def _measure(self, progress: VirtualJobs, row: int, now_s: float) -> bool:
        """Take the speed of a job that has worked a while since its start; return whether there was one to take."""
        cluster = progress.cluster
        start = int(cluster.starts[row])
        if self._measured_start[row] == start or now_s < progress.ready_s[row] + MEASURE_AFTER_S:
            return False
        self._measured_start[row] = start
        if cluster.batch[row] >= 0:
            return False
        seen = float(progress.rate[row] * np.exp(self._draw.normal(0.0, self._noise)))
        self._watching.measured(row, int(cluster.type[row]), int(cluster.workers[row]), seen)
        return True

    def _watch_loss(self, progress: VirtualJobs, row: int) -> None:
        """Hand on a job's losses when it has reported more of them."""
        curve = self._curves[row]
        if curve is None:
            return
        works, losses = curve
        done = progress.cluster.table.work[row] - progress.left[row]
        seen = int(np.searchsorted(works, done, side="right"))
        if seen > self._points_seen[row]:
            self._points_seen[row] = seen
            self._watching.reported(row, works[:seen], losses[:seen])


def teller(
    name: KnowledgeName, progress: VirtualJobs, *, seed: int, noise: float = NOISE, table: JobTable | None = None
) -> Teller:
    """Return who tells the policy what it knows; `table` has the true speeds where they are not the workload's."""
    return Oracle(progress, table) if name == "oracle" else Onlooker(progress, seed=seed, noise=noise)


def _loss_columns(points: tuple[tuple[float, float], ...]) -> tuple[FloatArray, FloatArray]:
    """Return a curve's works and losses as columns."""
    columns = np.array(points, float).reshape(-1, 2)
    return np.ascontiguousarray(columns[:, 0]), np.ascontiguousarray(columns[:, 1])
