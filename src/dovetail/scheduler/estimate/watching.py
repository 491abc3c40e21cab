"""Knowledge by watching: work left and speeds are estimated from what running jobs report.

A driver hands in what it sees: speeds on sizes that ran, losses, the work done, jobs that are done. Jobs of one kind
share their measured speeds, and all kinds share what doubling the workers does. Sizes that jobs may use, their restart
and their target loss are known, since their owners say them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from dovetail.scheduler.estimate.loss_curve import fit_loss
from dovetail.scheduler.estimate.speed_fit import Measured, SpeedPrior, first_prior, fit_speed, learn_prior
from dovetail.scheduler.job_table import JobTable
from dovetail.scheduler.view import FloatArray

FEWEST = 3
FIRST_GUESS_S = 3600.0
"""The size assumed before any job is done."""
HISTORY_ERROR = 1.0
"""The spread of sizes: the standard deviation of their logarithm, as an error bar."""

NOISE = 0.05
"""The relative error that one measured speed is taken to have."""
HOPE = 1.0
"""Error bars by which a size counts as faster than expected.

A size that may well pay is tried, and then it is known; one that is passed over never would be."""
OTHER_TYPE_ERROR = 0.5
"""The error bar of a kind's speeds on a type that it never ran on."""


class SizeHistory:
    """Sizes of finished jobs, by kind and in all.

    Sizes are in seconds on one worker, so that jobs of unlike kinds compare. Of a job that has already done `a` of
    them, with y the sizes of the finished jobs that were longer, less a, what is left counts as (Gittins)

        min over d of  (R + E[min(y, d)]) / P(y <= d) - R,

    the work that goes into jobs like it for each one that is done, if each is given up after d at the best moment. R is
    the start of a job that waits, 0 for one that runs: every one that is tried has to start, those that are given up in
    vain. For one size it is what is left. Where sizes spread far it is small for a young job, which may well be a short
    one, and grows with `a`; the mean would count every young job as long. The least d takes in the root of the number
    of sizes, so that no single one decides. Where too few were longer, as much again as the job has done.
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._all: list[float] = []
        self._by_kind: dict[str, list[float]] = {}

    def add(self, kind: str, size_s: float) -> None:
        """Take in a finished job."""
        self._all.append(size_s)
        self._by_kind.setdefault(kind, []).append(size_s)

    def expected_left_s(self, kind: str, done_s: float, start_s: float = 0.0) -> float:
        """Return the seconds on one worker to reckon with for a job that has done `done_s` of them."""
        for sizes in (self._by_kind.get(kind, ()), self._all):
            longer = [size - done_s for size in sizes if size > done_s]
            if len(longer) >= FEWEST:
                return _work_for_each_done(np.sort(longer), start_s)
        guess_s = _work_for_each_done(np.sort(self._all), start_s) if self._all else FIRST_GUESS_S
        return max(guess_s - done_s, done_s, 1.0)


def _work_for_each_done(sizes: FloatArray, start_s: float) -> float:
    """Return the least ratio of work to jobs done over all moments to give up, less one start; `sizes` rise."""
    count = len(sizes)
    done = np.arange(1, count + 1)
    ratios = (count * start_s + np.cumsum(sizes) + (count - done) * sizes) / done - start_s
    return float(ratios[int(np.sqrt(count)) - 1 :].min())


class Watching:
    """What has been learnt so far; every column starts from a guess and follows the measurements."""

    batch_speed: tuple[FloatArray, ...] = ()  # nobody has measured those

    def __init__(self, table: JobTable) -> None:
        """Start with guesses only."""
        count, num_types, width = table.speed.shape
        self._num_types = num_types
        self._table = table
        self._most = width - 1
        self._may_use = table.speed > 0
        self._kind_of = [job.kind if job.kind is not None else f"job {job.id}" for job in table.jobs]
        self._rows_of: dict[str, list[int]] = {}
        for row, kind in enumerate(self._kind_of):
            self._rows_of.setdefault(kind, []).append(row)
        self._points: dict[tuple[str, int], dict[int, Measured]] = {}
        self._prior: SpeedPrior | None = first_prior(self._most)
        """None where speeds were measured since: it is learnt again when it is needed."""
        self._measured: set[str] = set()
        self._paces: dict[str, tuple[float, float]] = {}
        """Of kinds that are not measured yet: the worker-seconds of the job that has had most, and its work in one."""
        self._history = SizeHistory()
        self._loss_total = np.full(count, np.nan)
        self._loss_error = np.full(count, np.nan)
        self.speed: FloatArray = np.zeros(table.speed.shape)
        self.speed_error = np.zeros(count)
        self.left = np.ones(count)
        self.left_error = np.full(count, HISTORY_ERROR)
        self._there: set[int] = set()
        self._num_there: Counter[str] = Counter()
        """Of each kind; the speeds of those that are there are up to date."""

    def measured(self, row: int, type_: int, size: int, speed: float) -> None:
        """Take in the speed of a job on `size` workers of a type, and look again at every kind that is there."""
        self.measured_kind(self._kind_of[row], type_, size, speed)

    def measured_kind(self, kind: str, type_: int, size: int, speed: float) -> None:
        """Take in the speed of some job of a kind, which need not be there any more."""
        points = self._points.setdefault((kind, type_), {})
        points[size] = points[size].again(speed) if size in points else Measured(log_speed=np.log(speed), count=1)
        self._measured.add(kind)
        self._prior = None
        for there in self._num_there:
            self._guess(there)

    def worked(self, row: int, done: float, worker_s: float) -> bool:
        """Take in what a job has done in all its worker-seconds, its starts among them; return whether that was news.

        It says how fast the kind is until its speed is measured: without it a job would count as long as its work is
        large in number, however nearly done it is.
        """
        kind = self._kind_of[row]
        if kind in self._measured or done <= 0 or worker_s <= self._paces.get(kind, (0.0, 0.0))[0]:
            return False
        self._paces[kind] = (worker_s, done / worker_s)
        if self._num_there[kind]:
            self._guess(kind)
        return True

    def reported(self, row: int, works: FloatArray, losses: FloatArray) -> None:
        """Take in all of a job's losses so far, each with the work done when it was seen."""
        loss = self._table.jobs[row].loss
        fit = fit_loss(works, losses, target=loss.target) if loss is not None else None
        if fit is not None:
            self._loss_total[row], self._loss_error[row] = fit.total_work, fit.error

    def finished(self, row: int, work: float) -> None:
        """Learn from a job that is done how long jobs are."""
        if row in self._there:
            self._there.remove(row)
            self._num_there[self._kind_of[row]] -= 1
            self._num_there += Counter()  # kinds that are gone are gone
        self.finished_kind(self._kind_of[row], work / self._on_one(row))

    def finished_kind(self, kind: str, size_s: float) -> None:
        """Learn from a job of a kind that took `size_s` seconds on one worker."""
        self._history.add(kind, size_s)

    def told_left(self, row: int, left: float) -> bool:
        """Take a job's own word for the work it has left; not before its speed shows, as work alone is no time.

        Return whether it was taken.
        """
        if self._kind_of[row] not in self._measured and self._kind_of[row] not in self._paces:
            return False
        self.left[row], self.left_error[row] = max(left, 1e-9), 0.0
        return True

    def estimate_left(self, row: int, done: float, *, waits: bool = False) -> None:
        """Say again what a job has left after `done`: what the loss says against what is usual, by their errors."""
        if row not in self._there:
            self._there.add(row)
            if not self._num_there[self._kind_of[row]]:
                self._guess(self._kind_of[row])
            self._num_there[self._kind_of[row]] += 1
        on_one = self._on_one(row)
        start_s = float(self._table.restart_s[row]) if waits else 0.0
        usual = self._history.expected_left_s(self._kind_of[row], done / on_one, start_s) * on_one
        if np.isnan(self._loss_total[row]):
            self.left[row], self.left_error[row] = usual, HISTORY_ERROR
            return
        by_loss = max(float(self._loss_total[row]) - done, 1e-3 * float(self._loss_total[row]), 1e-9)
        trust = HISTORY_ERROR**2 / (HISTORY_ERROR**2 + float(self._loss_error[row]) ** 2)
        self.left[row] = np.exp(trust * np.log(by_loss) + (1 - trust) * np.log(max(usual, 1e-9)))
        self.left_error[row] = float(self._loss_error[row]) * np.sqrt(trust)

    def _guess(self, kind: str) -> None:
        """Work out the speeds of a kind again."""
        rows = self._rows_of[kind]
        for type_, (mean, error) in enumerate(self._curves(kind)):
            curve = np.concatenate(([0.0], np.exp(mean + HOPE * error)))
            self.speed[rows, type_] = np.where(self._may_use[rows, type_], curve, 0.0)
            self.speed_error[rows] = float(error.mean())

    def _curves(self, kind: str) -> list[tuple[FloatArray, FloatArray]]:
        """Return a kind's log speeds and their errors on every type.

        On a type it never ran on they are those of one it did, by the pace of the two types for other kinds.
        """
        if self._prior is None:
            self._prior = learn_prior(self._points.values(), max_workers=self._most, noise=NOISE)
        prior = self._prior
        fits = {
            type_: fit_speed(self._points[kind, type_], prior, max_workers=self._most, noise=NOISE)
            for type_ in range(self._num_types)
            if (kind, type_) in self._points
        }
        if not fits:
            at = np.log2(np.arange(1, self._most + 1, dtype=float))
            _, pace = self._paces.get(kind, (0.0, 1.0))
            return [(prior.at(at) + np.log(pace), prior.error(at))] * self._num_types
        known = next(iter(fits))
        mean, error = fits[known]
        return [
            fits[type_]
            if type_ in fits
            else (mean + np.log(self._pace(type_, known)), np.hypot(error, OTHER_TYPE_ERROR))
            for type_ in range(self._num_types)
        ]

    def _pace(self, type_: int, known: int) -> float:
        """Return how fast a type is against another, over the kinds measured on both on one size; 1 where none was."""
        logs = [
            point.log_speed - self._points[kind, known][size].log_speed
            for (kind, other), points in self._points.items()
            if other == type_ and (kind, known) in self._points
            for size, point in points.items()
            if size in self._points[kind, known]
        ]
        return float(np.exp(np.median(logs))) if logs else 1.0

    def _on_one(self, row: int) -> float:
        """Return the speed of a job a worker, as far as it is known: that of its least size on its best type."""
        sizes = np.arange(1, self._most + 1)
        return float((self.speed[row, :, 1:] / sizes).max())
