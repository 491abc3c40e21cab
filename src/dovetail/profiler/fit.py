"""From times on few units to Amdahl's law: seconds(k) = serial + shared / k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Amdahl(NamedTuple):
    """Seconds on one unit, and the fraction of them that more units share."""

    seconds: float
    parallel: float


def fit_amdahl(seconds_by_units: Mapping[int, float]) -> Amdahl:
    """Return the law that comes nearest to measured times, each counted relative to itself.

    Least squares of serial / t + shared / (k t) = 1 over the points (k, t), with neither part below zero.
    """
    points = [(1 / t, 1 / (units * t)) for units, t in seconds_by_units.items() if t > 0]
    if not points:
        return Amdahl(seconds=0.0, parallel=1.0)
    aa = sum(a * a for a, _ in points)
    ab = sum(a * b for a, b in points)
    bb = sum(b * b for _, b in points)
    a_sum, b_sum = sum(a for a, _ in points), sum(b for _, b in points)
    determinant = aa * bb - ab * ab
    serial = shared = -1.0
    if determinant > 1e-12 * aa * bb:
        serial = (a_sum * bb - b_sum * ab) / determinant
        shared = (b_sum * aa - a_sum * ab) / determinant
    if serial < 0:
        serial, shared = 0.0, b_sum / bb
    elif shared < 0:
        serial, shared = a_sum / aa, 0.0
    return Amdahl(seconds=serial + shared, parallel=shared / (serial + shared))
