"""How fast a kind of job goes on sizes nobody has tried, from the few that were.

Seconds a unit of work, 1 / f(w), are fitted by non-negative least squares in

    1 / f(w) = t0 / w + t1 (w - 1) + t2 (w - 1)/w + t3

(batch and model size are the same for all points of a kind, so they are inside t0 and t2). Few points leave the four
terms open; a prior shape, scaled to the points and given little weight, closes them. Where a size was measured, the
measurement stands; between measured sizes the fit is bent to meet them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.scheduler.view import FloatArray

PRIOR_WEIGHT = 0.15
"""What the prior weighs beside one measured size; the power of it beside several."""
PRIOR_SIZES = (1, 2, 4, 8, 16)
PRIOR_SERIAL = 0.06
"""The prior shape: Amdahl's law with this serial part."""
UNKNOWN_ERROR = 0.5
POINT_ERROR = 0.03


def prior_speed(workers: FloatArray) -> FloatArray:
    """Return the speed-up that is assumed of a job that nothing is known of."""
    speed: FloatArray = 1.0 / (PRIOR_SERIAL + (1.0 - PRIOR_SERIAL) / workers)
    return speed


def fit_speed(points: Mapping[int, float], *, max_workers: int) -> tuple[FloatArray, float]:
    """Return f(w) for w = 0..max_workers (f(0) = 0) from measured speeds, and the relative error between the points."""
    from scipy.optimize import nnls  # noqa: PLC0415

    sizes = np.array(sorted(points), float)
    measured = np.array([points[int(size)] for size in sizes])
    scale = float(np.exp(np.mean(np.log(measured / prior_speed(sizes)))))
    assumed = np.array(PRIOR_SIZES, float)
    all_sizes = np.concatenate((sizes, assumed))
    all_speeds = np.concatenate((measured, scale * prior_speed(assumed)))
    weights = np.concatenate((np.ones(len(sizes)), np.full(len(assumed), PRIOR_WEIGHT ** len(sizes))))
    # Relative residuals: each row of the equation times f(w) has the right-hand side one.
    matrix = _terms(all_sizes) * (weights * all_speeds)[:, None]
    terms, _ = nnls(matrix, weights)
    workers = np.arange(1, max_workers + 1, dtype=float)
    fitted = 1.0 / np.maximum(_terms(workers) @ terms, 1e-300)
    at_points = 1.0 / np.maximum(_terms(sizes) @ terms, 1e-300)
    bend = np.interp(np.log2(workers), np.log2(sizes), np.log(measured / at_points))
    error = POINT_ERROR + UNKNOWN_ERROR * 2.0 ** (-len(sizes))
    return np.concatenate(([0.0], fitted * np.exp(bend))), error


def _terms(workers: FloatArray) -> FloatArray:
    """Return the four terms of 1 / f(w), one column each."""
    return np.stack((1.0 / workers, workers - 1.0, (workers - 1.0) / workers, np.ones_like(workers)), axis=1)
