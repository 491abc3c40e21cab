"""Knowledge by watching: work left and speeds are estimated from what running jobs report.

A driver hands in what it sees: speeds on sizes that ran, losses, the work done, jobs that are done. Jobs of one kind
share their measured speeds. Sizes that jobs may use, their restart and their target loss are known, since their owners
say them.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.estimate.history import ERROR as HISTORY_ERROR
from dovetail.scheduler.estimate.history import SizeHistory
from dovetail.scheduler.estimate.loss_curve import fit_loss
from dovetail.scheduler.estimate.speed_fit import UNKNOWN_ERROR, fit_speed, prior_speed
from dovetail.scheduler.job_table import JobTable
from dovetail.scheduler.view import FloatArray

Points = dict[int, float]


class Watching:
    """What has been learnt so far; every column starts from a guess and follows the measurements."""

    batch_speed: tuple[FloatArray, ...] = ()  # nobody has measured those

    def __init__(self, table: JobTable) -> None:
        """Start with guesses only."""
        count, self._num_types, width = table.speed.shape
        self._table = table
        self._may_use = table.speed > 0
        self._kind_of = [job.kind if job.kind is not None else f"job {job.id}" for job in table.jobs]
        self._rows_of: dict[str, list[int]] = {}
        for row, kind in enumerate(self._kind_of):
            self._rows_of.setdefault(kind, []).append(row)
        self._points: dict[tuple[str, int], Points] = {}
        self._history = SizeHistory()
        self._loss_total = np.full(count, np.nan)
        self._loss_error = np.full(count, np.nan)
        self._guess = np.concatenate(([0.0], prior_speed(np.arange(1, width, dtype=float))))
        self.speed = np.where(self._may_use, self._guess[None, None, :], 0.0)
        self.speed_error = np.full(count, UNKNOWN_ERROR)
        self.left = np.ones(count)
        self.left_error = np.full(count, HISTORY_ERROR)

    def measured(self, row: int, type_: int, size: int, speed: float) -> None:
        """Take in the speed of a job on `size` workers of a type."""
        kind = self._kind_of[row]
        points = self._points.setdefault((kind, type_), {})
        points[size] = speed if size not in points else float(np.sqrt(points[size] * speed))
        self._refit(kind)

    def reported(self, row: int, works: FloatArray, losses: FloatArray) -> None:
        """Take in all of a job's losses so far, each with the work done when it was seen."""
        loss = self._table.jobs[row].loss
        fit = fit_loss(works, losses, target=loss.target) if loss is not None else None
        if fit is not None:
            self._loss_total[row], self._loss_error[row] = fit.total_work, fit.error

    def finished(self, row: int, work: float) -> None:
        """Learn from a job that is done how long jobs are."""
        self._history.add(self._kind_of[row], work / self._on_one(row))

    def estimate_left(self, row: int, done: float) -> None:
        """Say again what a job has left after `done`: what the loss says against what is usual, by their errors."""
        on_one = self._on_one(row)
        usual = self._history.expected_left_s(self._kind_of[row], done / on_one) * on_one
        if np.isnan(self._loss_total[row]):
            self.left[row], self.left_error[row] = usual, HISTORY_ERROR
            return
        by_loss = max(float(self._loss_total[row]) - done, 1e-3 * float(self._loss_total[row]), 1e-9)
        trust = HISTORY_ERROR**2 / (HISTORY_ERROR**2 + float(self._loss_error[row]) ** 2)
        self.left[row] = np.exp(trust * np.log(by_loss) + (1 - trust) * np.log(max(usual, 1e-9)))
        self.left_error[row] = float(self._loss_error[row]) * np.sqrt(trust)

    def _refit(self, kind: str) -> None:
        """Fit a kind's speeds again, on types it never ran on too: there by the pace of the types for other kinds."""
        rows = self._rows_of[kind]
        width = self.speed.shape[2] - 1
        fits = {
            type_: fit_speed(self._points[kind, type_], max_workers=width)
            for type_ in range(self._num_types)
            if (kind, type_) in self._points
        }
        for type_ in range(self._num_types):
            if type_ in fits:
                curve, error = fits[type_]
            else:
                known = next(iter(fits))
                curve, error = fits[known][0] * self._pace(type_, known), UNKNOWN_ERROR
            self.speed[rows, type_] = np.where(self._may_use[rows, type_], curve, 0.0)
            if len(fits) == 1 or type_ in fits:
                self.speed_error[rows] = error

    def _pace(self, type_: int, known: int) -> float:
        """Return how fast a type is against another, over the kinds measured on both on one size; 1 where none was."""
        ratios = [
            points[size] / self._points[kind, known][size]
            for (kind, other), points in self._points.items()
            if other == type_ and (kind, known) in self._points
            for size in points
            if size in self._points[kind, known]
        ]
        return float(np.median(ratios)) if ratios else 1.0

    def _on_one(self, row: int) -> float:
        """Return the speed of a job a worker, as far as it is known: that of its least size on its best type."""
        sizes = np.arange(1, self.speed.shape[2])
        return float((self.speed[row, :, 1:] / sizes).max())
