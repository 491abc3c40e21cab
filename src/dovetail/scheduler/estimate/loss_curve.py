"""How much work a job has left, from the loss it has reported so far.

The loss of stochastic gradient descent falls like

    loss(k) = 1 / (c0 k + c1) + c2,        c0, c1, c2 >= 0,

after k units of work. With c2 given, 1 / (loss - c2) is a straight line in k, so c0 and c1 follow by least squares; c2
is searched. The job is done where the curve meets its target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from dovetail.scheduler.view import FloatArray

FEWEST_POINTS = 5
"""Below this many points nothing is fitted."""
GRID = 48
LEAST_ERROR = 0.02
FARTHEST = 1000.0
"""An end further off than so many times the work seen is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFit:
    """A fitted curve, the work at which it meets the target, and the relative error of that."""

    c0: float
    c1: float
    c2: float
    total_work: float
    error: float


def fit_loss(works: FloatArray, losses: FloatArray, *, target: float) -> LossFit | None:
    """Return the fit to the points seen so far, or None where they say nothing yet.

    The error is how far the answer moves when the last third of the points is withheld: large while the curve is young.
    """
    if len(works) < FEWEST_POINTS:
        return None
    scale = float(works[-1]) or 1.0
    whole = fit_kernel(works / scale, losses, target)
    fewer = max(FEWEST_POINTS - 1, 2 * len(works) // 3)
    part = fit_kernel(works[:fewer] / scale, losses[:fewer], target)
    if not 0 < whole[3] < FARTHEST:
        return None
    moved = abs(np.log(part[3] / whole[3])) if np.isfinite(part[3]) and part[3] > 0 else 1.0
    return LossFit(
        c0=whole[0] / scale,
        c1=whole[1],
        c2=whole[2],
        total_work=whole[3] * scale,
        error=float(np.clip(moved, LEAST_ERROR, 2.0)),
    )


@njit(cache=True, nogil=True)
def fit_kernel(works: FloatArray, losses: FloatArray, target: float) -> tuple[float, float, float, float]:
    """Return c0, c1, c2 of the best curve and the work at which it meets the target (infinity where it never does).

    c2 runs over a grid below both the target and the least loss, then over a finer one around the best. Residuals are
    relative to the loss, since noise grows with it.
    """
    ceiling = min(losses.min(), target) * (1.0 - 1e-6)
    low, high = min(0.0, 2.0 * ceiling), ceiling
    best_error, best_c0, best_c1, best_c2 = np.inf, 0.0, 0.0, 0.0
    for _ in range(3):
        step = (high - low) / GRID
        for position in range(GRID + 1):
            c2 = low + position * step
            c0, c1, error = _line(works, losses, c2)
            if error < best_error:
                best_error, best_c0, best_c1, best_c2 = error, c0, c1, c2
        low, high = max(low, best_c2 - step), min(high, best_c2 + step)
    if best_c0 <= 0.0 or target <= best_c2:
        return best_c0, best_c1, best_c2, np.inf
    return best_c0, best_c1, best_c2, (1.0 / (target - best_c2) - best_c1) / best_c0


@njit(cache=True, nogil=True)
def _line(works: FloatArray, losses: FloatArray, c2: float) -> tuple[float, float, float]:
    """Return c0 and c1 for a given c2 by weighted least squares, and the sum of squared relative residuals.

    A relative error e of the loss moves 1 / (loss - c2) by e loss / (loss - c2)^2, which is one over the weight.
    """
    sw, sx, sy, sxx, sxy = 0.0, 0.0, 0.0, 0.0, 0.0
    for position in range(len(works)):
        gap = max(losses[position] - c2, 1e-12)
        weight = (gap * gap / losses[position]) ** 2
        x, y = works[position], 1.0 / gap
        sw += weight
        sx += weight * x
        sy += weight * y
        sxx += weight * x * x
        sxy += weight * x * y
    spread = sw * sxx - sx * sx
    if spread <= 0.0:
        return 0.0, 0.0, np.inf
    c0 = (sw * sxy - sx * sy) / spread
    c1 = (sy - c0 * sx) / sw
    if c0 <= 0.0 or c1 <= 0.0:
        return 0.0, 0.0, np.inf
    error = 0.0
    for position in range(len(works)):
        residual = (1.0 / (c0 * works[position] + c1) + c2 - losses[position]) / losses[position]
        error += residual * residual
    return c0, c1, error
