"""The fastest plan for the money: the highest throughput whose cheapest hourly price is within a cap."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dovetail.planner.cheapest_route import Route
from dovetail.planner.exact import Clock
from dovetail.planner.hourly import Hourly
from dovetail.planner.stage_kernel import STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The fastest route within the cap, its samples/s, and whether nothing faster exists."""

    route: Route
    samples_per_s: float
    proven: bool


def fastest_within(
    hourly: Hourly, *, max_cost_per_hour: float, at_least: float, clock: Clock, deadline_s: float
) -> Fastest | None:
    """Return the fastest plan of at most `max_cost_per_hour`, or None where not even `at_least` samples/s can be had.

    The hourly price never falls as throughput rises, so bisection finds the edge; a plan that is met on the way moves
    the lower end to its own pace, which ends the search on an exact breakpoint.
    """
    cap = max_cost_per_hour * (1 + 1e-12)
    route, _ = _affordable(hourly, at_least, cap)
    if route is None:
        return None
    low, high = hourly.pace(route), math.inf
    while clock() < deadline_s:
        above, proven = _affordable(hourly, low * (1 + STEP), cap)
        if above is None:
            return Fastest(route=route, samples_per_s=low, proven=proven)
        route, low = above, hourly.pace(above)
        middle = 2 * low if math.isinf(high) else math.sqrt(low * high)
        further, _ = _affordable(hourly, middle, cap)
        if further is None:
            high = middle
        else:
            route, low = further, hourly.pace(further)
    return Fastest(route=route, samples_per_s=low, proven=False)


def _affordable(hourly: Hourly, samples_per_s: float, cap: float) -> tuple[Route | None, bool]:
    """Return a plan at this throughput within the cap, or None and whether that is proven."""
    answer = hourly.at(samples_per_s, cutoff=cap * (1 + STEP))
    if answer.route is not None and hourly.price(answer.route) <= cap:
        return answer.route, True
    return None, answer.exact
