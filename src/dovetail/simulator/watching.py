"""Knowledge by watching: work left and speeds are estimated from what running jobs report.

A job's speed on a size counts as measured after it has worked there a while, with an error of a few percent; jobs of
one kind share their measurements. Its loss is seen up to the work it has done. Sizes that jobs may use, their restart
and their target loss are known, since their owners say them.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.estimate.history import ERROR as HISTORY_ERROR
from dovetail.scheduler.estimate.history import SizeHistory
from dovetail.scheduler.estimate.loss_curve import fit_loss
from dovetail.scheduler.estimate.speed_fit import UNKNOWN_ERROR, fit_speed, prior_speed
from dovetail.scheduler.view import FloatArray
from dovetail.simulator.state import ClusterState

MEASURE_AFTER_S = 20.0
"""Seconds of work after which a speed counts as measured."""
NOISE = 0.03
"""The relative error of a measured speed."""

Points = dict[int, float]


class Watching:
    """What has been learnt so far; every column starts from a guess and follows the measurements."""

    def __init__(self, state: ClusterState, *, seed: int) -> None:
        """Start with guesses only."""
        table = state.table
        count, self._kinds, width = table.speed.shape
        self._draw = np.random.default_rng(seed)
        self._may_use = table.speed > 0
        self._kind_of = [job.kind if job.kind is not None else f"job {job.id}" for job in table.jobs]
        self._rows_of: dict[str, list[int]] = {}
        for row, kind in enumerate(self._kind_of):
            self._rows_of.setdefault(kind, []).append(row)
        self._points: dict[tuple[str, int], Points] = {}
        self._measured_start = np.zeros(count, np.int64)
        self._points_fitted = np.zeros(count, np.int64)
        self._history = SizeHistory()
        self._curves = [_loss_columns(job.loss.points) if job.loss is not None else None for job in table.jobs]
        self._loss_total = np.full(count, np.nan)
        self._loss_error = np.full(count, np.nan)
        self._guess = np.concatenate(([0.0], prior_speed(np.arange(1, width, dtype=float))))
        self.speed = np.where(self._may_use, self._guess[None, None, :], 0.0)
        self.speed_error = np.full(count, UNKNOWN_ERROR)
        self.left = np.ones(count)
        self.left_error = np.full(count, HISTORY_ERROR)

    def refresh(self, state: ClusterState, arrived: list[int], done: list[int], now_s: float) -> None:
        """Measure what runs, learn from what is done, and look again at what every job has left."""
        news = False
        for row in state.running.tolist():
            news |= self._measure(state, row, now_s)
            self._watch_loss(state, row)
        for row in done:
            self._history.add(self._kind_of[row], state.table.work[row] / self._on_one(row))
        changed = state.active.tolist() if news or done else [*state.running.tolist(), *arrived]
        for row in changed:
            self._estimate_left(state, row)

    def _measure(self, state: ClusterState, row: int, now_s: float) -> bool:
        """Take the speed of a job that has worked a while since its start; return whether there was one to take."""
        start = int(state.starts[row])
        if self._measured_start[row] == start or now_s < state.ready_s[row] + MEASURE_AFTER_S:
            return False
        self._measured_start[row] = start
        if state.batch[row] >= 0:
            return False
        kind, type_, size = self._kind_of[row], int(state.type[row]), int(state.workers[row])
        seen = float(state.rate[row] * np.exp(self._draw.normal(0.0, NOISE)))
        points = self._points.setdefault((kind, type_), {})
        points[size] = seen if size not in points else float(np.sqrt(points[size] * seen))
        self._refit(kind)
        return True

    def _refit(self, kind: str) -> None:
        """Fit a kind's speeds again, on types it never ran on too: there by the pace of the types for other kinds."""
        rows = self._rows_of[kind]
        width = self.speed.shape[2] - 1
        fits = {
            type_: fit_speed(self._points[kind, type_], max_workers=width)
            for type_ in range(self._kinds)
            if (kind, type_) in self._points
        }
        for type_ in range(self._kinds):
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

    def _watch_loss(self, state: ClusterState, row: int) -> None:
        """Fit a job's loss again when it has reported more of it."""
        curve = self._curves[row]
        if curve is None:
            return
        works, losses = curve
        seen = int(np.searchsorted(works, state.table.work[row] - state.left[row], side="right"))
        if seen <= self._points_fitted[row]:
            return
        self._points_fitted[row] = seen
        loss = state.table.jobs[row].loss
        fit = fit_loss(works[:seen], losses[:seen], target=loss.target) if loss is not None else None
        if fit is not None:
            self._loss_total[row], self._loss_error[row] = fit.total_work, fit.error

    def _estimate_left(self, state: ClusterState, row: int) -> None:
        """Weigh what the loss says against what is usual, each by its error."""
        done = float(state.table.work[row] - state.left[row])
        on_one = self._on_one(row)
        usual = self._history.expected_left_s(self._kind_of[row], done / on_one) * on_one
        if np.isnan(self._loss_total[row]):
            self.left[row], self.left_error[row] = usual, HISTORY_ERROR
            return
        by_loss = max(float(self._loss_total[row]) - done, 1e-3 * float(self._loss_total[row]), 1e-9)
        trust = HISTORY_ERROR**2 / (HISTORY_ERROR**2 + float(self._loss_error[row]) ** 2)
        self.left[row] = np.exp(trust * np.log(by_loss) + (1 - trust) * np.log(max(usual, 1e-9)))
        self.left_error[row] = float(self._loss_error[row]) * np.sqrt(trust)

    def _on_one(self, row: int) -> float:
        """Return the speed of a job a worker, as far as it is known: that of its least size on its best type."""
        sizes = np.arange(1, self.speed.shape[2])
        return float((self.speed[row, :, 1:] / sizes).max())


def _loss_columns(points: tuple[tuple[float, float], ...]) -> tuple[FloatArray, FloatArray]:
    """Return a curve's works and losses as columns."""
    columns = np.array(points, float).reshape(-1, 2)
    return np.ascontiguousarray(columns[:, 0]), np.ascontiguousarray(columns[:, 1])
