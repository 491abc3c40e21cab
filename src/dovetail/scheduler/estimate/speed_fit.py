"""How fast a kind of job goes on sizes nobody has tried, from the few that were and from all other kinds.

The logarithm of a kind's speed, over x = log2 of its workers, is taken for a random walk with a drift and a slope,

    log f(x) = level + drift(x) + slope x + walk(x),    var(slope) = spread / 2,
                                                        var(walk(x) - walk(y)) = spread |x - y| / 2,

and a measured speed for log f with an error of `noise`. Given the sizes that were measured, the others follow with
their error bars by the formulas of Gaussian processes: between two measured sizes the curve goes from one to the other,
beyond them it follows the drift, and the further it goes the less is known. No form of the curve is assumed, so one
that saturates, falls or has a dent is met as soon as it is measured.

Drift and spread are learnt from all kinds together: each pair of neighbouring sizes of one kind says by how much a
doubling made it faster. At first the drift is that of Amdahl's law with a small serial part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.scheduler.view import FloatArray

FIRST_SERIAL = 0.06
"""The serial part of a job that nothing is known of."""
FIRST_SPREAD = 0.09
"""The variance of what one doubling does, before anything was measured: about 0.3 of the speed up or down."""
FIRST_PAIRS = 2.0
"""How many pairs of sizes these first guesses count for."""
SLOPE = 0.5
"""The share of the spread that is a kind's own slope: who gains little by one doubling gains little by the next."""
LEVEL = 100.0
"""The variance of the level: nothing is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was seen of one size: the mean logarithm of the speed, and how often."""

    log_speed: float
    count: int

    def again(self, speed: float) -> Measured:
        """Return it with one more measurement."""
        total = self.log_speed * self.count + float(np.log(speed))
        return Measured(log_speed=total / (self.count + 1), count=self.count + 1)


Points = Mapping[int, Measured]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPrior:
    """What doubling the workers does to jobs in general."""

    drift: FloatArray
    """log f at 1, 2, 4, ... workers, over that at 1."""
    spread: float

    def error(self, doublings: FloatArray) -> FloatArray:
        """Return how far a kind may be from the drift after so many doublings, its level known."""
        return np.sqrt(self.spread * (SLOPE * doublings * doublings + (1.0 - SLOPE) * doublings))

    def at(self, doublings: FloatArray) -> FloatArray:
        """Return the drift at any number of doublings, straight between whole ones and beyond the last."""
        last = len(self.drift) - 1
        slope = self.drift[last] - self.drift[last - 1]
        beyond = np.maximum(doublings - last, 0.0) * slope
        return np.asarray(np.interp(doublings, np.arange(last + 1), self.drift) + beyond)


def first_prior(max_workers: int) -> SpeedPrior:
    """Return what is assumed before anything was measured."""
    sizes = 2.0 ** np.arange(max(int(np.ceil(np.log2(max(max_workers, 2)))), 1) + 1)
    return SpeedPrior(drift=-np.log(FIRST_SERIAL + (1.0 - FIRST_SERIAL) / sizes), spread=FIRST_SPREAD)


def learn_prior(kinds: Iterable[Points], *, max_workers: int, noise: float) -> SpeedPrior:
    """Return drift and spread from every pair of neighbouring measured sizes, the first guesses counting for some."""
    first = first_prior(max_workers)
    steps = np.diff(first.drift)
    weight, total = np.full(len(steps), FIRST_PAIRS), FIRST_PAIRS * steps
    pairs = [pair for points in kinds for pair in _pairs(points)]
    for low, high, gain, _ in pairs:
        shares = np.clip(np.minimum(high, np.arange(1, len(steps) + 1)) - np.maximum(low, np.arange(len(steps))), 0, 1)
        if shares.sum() > 0:
            off = gain - float(shares @ steps)
            total += shares * (steps + off / shares.sum())
            weight += shares
    drift = np.concatenate(([0.0], np.cumsum(total / weight)))
    prior = SpeedPrior(drift=drift, spread=first.spread)
    squares, count = FIRST_PAIRS * first.spread, FIRST_PAIRS
    for low, high, gain, seen in pairs:
        off = gain - float(prior.at(np.array([high]))[0] - prior.at(np.array([low]))[0])
        squares += max(off * off - noise * noise * seen, 0.0) / max(high - low, 1e-9)
        count += 1.0
    return SpeedPrior(drift=drift, spread=max(squares / count, 1e-6))


def _pairs(points: Points) -> list[tuple[float, float, float, float]]:
    """Return neighbouring measured sizes: both in doublings, the gain in log speed, and the sum of 1 / measurements."""
    sizes = sorted(points)
    return [
        (
            float(np.log2(low)),
            float(np.log2(high)),
            points[high].log_speed - points[low].log_speed,
            1 / points[low].count + 1 / points[high].count,
        )
        for low, high in itertools.pairwise(sizes)
    ]


def fit_speed(points: Points, prior: SpeedPrior, *, max_workers: int, noise: float) -> tuple[FloatArray, FloatArray]:
    """Return log f(w) for w = 1..max_workers and its error bar, from at least one measured size."""
    sizes = sorted(points)
    x = np.log2(np.array(sizes, float))
    y = np.array([points[size].log_speed for size in sizes]) - prior.at(x)
    errors = noise**2 / np.array([points[size].count for size in sizes])
    at = np.log2(np.arange(1, max_workers + 1, dtype=float))
    inner = _covariance(x, x, prior.spread) + np.diag(errors)
    across = _covariance(at, x, prior.spread)
    weights = np.linalg.solve(inner, across.T).T
    mean = prior.at(at) + weights @ y
    variance = LEVEL + prior.error(at) ** 2 - (weights * across).sum(axis=1)
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _covariance(x: FloatArray, y: FloatArray, spread: float) -> FloatArray:
    """Return the covariance of log f at x and at y doublings: level, slope and walk."""
    walk = np.minimum(x[:, None], y[None, :])
    slope = x[:, None] * y[None, :]
    return np.asarray(LEVEL + spread * (SLOPE * slope + (1.0 - SLOPE) * walk))
