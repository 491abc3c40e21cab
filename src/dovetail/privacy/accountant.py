"""What private steps cost, and what noise a budget needs: the accountants of dp-accounting, asked the other way round.

A step that takes each sample with chance q, and adds noise of `noise` clips to the sum of clipped gradients, is the
Gaussian mechanism under Poisson sampling. Two data sets are neighbours when one has a sample that the other lacks. Both
accountants bound what all steps cost together:

* pld: by the distribution of the privacy loss, convolved over steps; exact but for rounding, which is upwards;
* rdp: by Rényi divergences, which add up; quick, and never less than pld's.

Where distributions get too wide for pld, which they do at an epsilon that promises nothing, rdp answers for both.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, reduce
from typing import Any

import msgspec

from dovetail.errors import DovetailError, MissingExtraError
from dovetail.spec.privacy import Accountant

PRECISION = 1e-3
"""How far above the least noise that will do an answer may be, relative to it."""
MOST_NOISE = 1e5
"""In clips: more would leave nothing to learn from."""
LEAST_NOISE = 1e-2
WIDE = 50.0
"""An epsilon (by rdp) above which rdp answers alone: e^50 is no promise, and the distributions are wide."""
INTERVAL = 1e-4
"""Between two losses of a distribution, as long as the epsilon is small; more above, in proportion."""


class SpentSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that are alike: each takes every sample with chance `rate`, and adds noise of `noise` clips."""

    rate: float
    noise: float
    steps: int


def epsilon_of(spent: Sequence[SpentSteps], delta: float, accountant: Accountant = "pld") -> float:
    """Return the epsilon that steps of all kinds have together, at a delta; 0 of none."""
    spent = [each for each in spent if each.steps]
    if not spent:
        return 0.0
    by_rdp = _epsilon_by_rdp(spent, delta)
    if accountant == "rdp" or not by_rdp < WIDE:
        return by_rdp
    interval = INTERVAL * max(1.0, float(f"{by_rdp:.0e}"))
    losses = [_losses(each.rate, each.noise, each.steps, interval) for each in spent]
    return min(by_rdp, float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta)))


def noise_for(
    epsilon: float,
    delta: float,
    *,
    rate: float,
    steps: int,
    before: Sequence[SpentSteps] = (),
    accountant: Accountant = "pld",
) -> float:
    """Return the least noise, in clips, with which so many steps stay within a budget, after those `before`.

    It is up to a thousandth above the least, never below.
    """
    if (spent := epsilon_of(before, delta, accountant)) >= epsilon:
        raise DovetailError(
            f"a budget of epsilon {epsilon:g} is spent: the steps before cost {spent:.4g} at delta {delta:g}",
            hint="raise epsilon, or keep the model as it is",
        )

    @cache
    def cost(noise: float, how: Accountant) -> float:
        return epsilon_of([*before, SpentSteps(rate=rate, noise=noise, steps=steps)], delta, how)

    high = 1.0
    while cost(high, "rdp") > epsilon:
        high *= 2.0
        if high > MOST_NOISE:
            raise DovetailError(
                f"no noise keeps {steps:,} steps within epsilon {epsilon:g} at delta {delta:g}",
                hint="raise epsilon or delta, or take fewer steps",
            )
    within = _least(lambda noise: cost(noise, "rdp"), epsilon, high / 2.0, high)
    if accountant == "rdp":
        return within
    return _least(lambda noise: cost(noise, "pld"), epsilon, within / 1.25, within)


def steps_within(
    epsilon: float,
    delta: float,
    *,
    rate: float,
    noise: float,
    most: int,
    before: Sequence[SpentSteps] = (),
    accountant: Accountant = "pld",
) -> int:
    """Return how many steps, `most` at most, stay within a budget after those `before`."""

    def fits(steps: int) -> bool:
        return epsilon_of([*before, SpentSteps(rate=rate, noise=noise, steps=steps)], delta, accountant) <= epsilon

    if fits(most):
        return most
    few, many = 0, most  # `few` fit, `many` do not
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle) else (few, middle)
    return few


def _least(cost: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """Return the least noise that costs no more than epsilon, from above; `high` or more does, `low` may do."""
    while cost(high) > epsilon:  # by rounding
        low, high = high, high * 1.25
    while (cost_low := cost(low)) <= epsilon:
        if low <= LEAST_NOISE:
            return low
        low, high = max(LEAST_NOISE, low / 1.25), low
    cost_high, aim = cost(high), 1.0
    while high > low * (1.0 + PRECISION):
        middle = _between(low, high, cost_low, cost_high, epsilon, aim)
        if (found := cost(middle)) <= epsilon:
            high, cost_high, aim = middle, found, -1.0
        else:
            low, cost_low, aim = middle, found, 1.0
    return high


def _between(low: float, high: float, cost_low: float, cost_high: float, epsilon: float, aim: float) -> float:
    """Return about where between two noises the cost is epsilon, by a line on logarithms.

    It is a little above with `aim` 1 and below with -1, so that both ends close in.
    """
    middle = 0.5
    if math.isfinite(cost_low) and cost_high > 0.0:
        middle = math.log(cost_low / epsilon) / math.log(cost_low / cost_high)
        middle += 0.4 * aim * PRECISION / math.log(high / low)
    return float(low * (high / low) ** min(0.9, max(0.1, middle)))


@lru_cache(maxsize=32)
def _losses(rate: float, noise: float, steps: int, interval: float) -> Any:
    """Return the distribution of the privacy loss of steps of one kind, rounded upwards."""
    made = _loaded("pld").privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, use_connect_dots=True
    )
    return made.self_compose(steps)


def _epsilon_by_rdp(spent: Sequence[SpentSteps], delta: float) -> float:
    """Return what Rényi divergences say; where they are lost in rounding, what they say of steps with every sample."""
    if found := _rdp(spent, delta):
        return found
    return _rdp([msgspec.structs.replace(each, rate=1.0) for each in spent], delta)


def _rdp(spent: Sequence[SpentSteps], delta: float) -> float:
    """Have Rényi divergences composed; return their epsilon."""
    made, events = _loaded("rdp").RdpAccountant(), _loaded("dp_event")
    log = logging.getLogger("absl")  # says which orders it leaves out, of which there are others
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        for each in spent:
            made.compose(events.PoissonSampledDpEvent(each.rate, events.GaussianDpEvent(each.noise)), each.steps)
        return float(made.get_epsilon(delta))
    finally:
        log.setLevel(before)


def _loaded(name: str) -> Any:
    """Return a part of dp-accounting, or say how to get it."""
    try:
        return importlib.import_module(f"dp_accounting.{name}")
    except ImportError:
        raise MissingExtraError("dp-accounting, which counts what private steps cost,", extra="privacy") from None
