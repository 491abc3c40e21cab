"""The exact planner: the cheapest plan of all, or the fastest for the money, and the proof that nothing is better.

A plan that runs at x samples/s costs `samples / 3600 * hourly(x) / x`, where hourly(x) is the cheapest hourly price at
x (`Hourly`), bytes between sites included. It never falls as x rises, so over x in [a, b)

    hourly(x) / x  >=  hourly(a) / b.

The search keeps intervals of x with such bounds, the most promising first. It asks for hourly(x) at the left end of
an interval, learns a plan (which may be cheaper than the best), and drops all x below hourly(x) / best. When no
interval can hold anything cheaper, the best plan is optimal and the least bound is its certificate. Beyond the last
interval stands the relaxation to real units, whose hourly(x) / x never falls.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dovetail.errors import PlanError
from dovetail.planner.cheapest_route import Route
from dovetail.planner.hourly import HourlyCost, HourlyPrices
from dovetail.planner.stage_kernel import STEP

GROWTH = 1.4
"""How much wider each interval of throughput is than the last, at the start."""
NARROWEST = 1e-6
"""An interval that cannot be settled is split down to this relative width, then left with its bound."""
OPTIMAL_WITHIN = 1e-6
"""The gap between cost and bound at which a plan counts as optimal."""
MARGIN = 0.9
"""How much of that gap is used up by settling early; the rest is for rounding in the bound and in the cost."""
PATIENCE = 2000
"""After so many questions a bound within the tolerance is proof enough; before, only one that meets the cost."""

LOOSE = 0.1
"""A question about a wide interval may be off by this part of its width, which is what its bound is off anyway."""
NARROW = 0.01
"""Questions about intervals of less relative width are answered as exactly as can be."""
WIDE = 8.0
"""An interval that would take more steps than this is split, where limits bind: its bound rises faster."""
SELDOM = 4
"""Of so many questions one does more for a legal plan than what its bound takes, once there is one."""

Clock = Callable[[], float]


@dataclass(order=True, slots=True)
class Interval:
    """Throughputs from `low` up to `high`, where every plan costs at least `rate` (USD per hour over samples/s)."""

    rate: float
    low: float
    high: float
    hourly: float = field(compare=False)
    relaxed_rate: float = field(compare=False)
    is_open: bool = field(compare=False, default=False)
    """Whether `low` itself is not settled: its bound may be loose."""
    is_asked: bool = field(compare=False, default=False)
    """Whether `hourly` is all that is known at `low`, though a plan may cost more: asking there again is no news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestRoute:
    """The best route, its USD per hour over samples/s, and the least that any plan can have."""

    route: Route
    rate: float
    rate_bound: float


class CheapestSearch:
    """One search for the cheapest plan of a problem at no less than a floor."""

    def __init__(self, hourly: HourlyPrices, *, min_samples_per_s: float, clock: Clock, deadline_s: float) -> None:
        """Set up; `deadline_s` is a reading of `clock` at which the search returns what it has."""
        self.hourly = hourly
        self.floor = min_samples_per_s
        self.clock = clock
        self.deadline_s = deadline_s
        self.best_rate = math.inf
        self.best_route: Route | None = None
        hourly.is_late = lambda: clock() >= deadline_s
        self.questions = 0
        self._polished: set[bytes] = set()
        self._stride, self._pause, self._rest = 4.0, 1, 0
        self._passed_rate = math.inf  # the least bound of the ranges that were passed at once

    def run(self) -> CheapestRoute | None:
        """Return the cheapest plan and its bound, or None where there is provably no plan at the floor.

        Raises PlanError where time runs out before a plan is met and before it is proven that there is none.
        """
        open_intervals, settled_rate = self._spread()
        if self.best_route is None and not open_intervals:
            return None
        heapq.heapify(open_intervals)
        unsettled_rate = math.inf
        while open_intervals and not self._is_settled(open_intervals[0].rate) and self.clock() < self.deadline_s:
            interval = heapq.heappop(open_intervals)
            narrower = self._settle(interval)
            if narrower is None:
                unsettled_rate = min(unsettled_rate, interval.rate)
            else:
                for part in narrower:
                    heapq.heappush(open_intervals, part)
        if self.best_route is None:
            if not open_intervals and math.isinf(unsettled_rate) and math.isinf(settled_rate):
                return None
            raise PlanError(
                "time ran out before a plan was found, and before it was proven that there is none",
                hint="raise --time-limit, or ease the limits",
            )
        remaining = open_intervals[0].rate if open_intervals else math.inf
        bound = min(self.best_rate * (1 - STEP), settled_rate, unsettled_rate, self._passed_rate, remaining)
        paid_by_all = self.hourly.least_egress_rate
        return CheapestRoute(route=self.best_route, rate=self.best_rate + paid_by_all, rate_bound=bound + paid_by_all)

    def _spread(self) -> tuple[list[Interval], float]:
        """Return intervals from the floor up to where nothing cheaper can be, and the bound of all beyond them."""
        low = self.floor
        answer = self._ask(low, width=GROWTH - 1 if low > 0 else 0.0)
        if math.isinf(answer.lower_bound):
            return [], math.inf
        if low == 0.0:  # below the pace of the cheapest plan per hour, that plan is the cheapest of all
            known = answer.route if answer.exact else None
            low = self.hourly.slowest_pace() if known is None else self.hourly.pace(known)
            if self.hourly.has_egress:  # which a slower plan may save
                low = self.hourly.slowest_pace()
                answer = self._ask(low)
        intervals: list[Interval] = []
        while True:
            relaxed_rate = self.hourly.relaxed(low)
            if self._is_settled(relaxed_rate):
                return intervals, relaxed_rate
            high = low * GROWTH
            rate = max(answer.lower_bound / high, relaxed_rate)
            intervals.append(
                Interval(
                    rate=rate,
                    low=low,
                    high=high,
                    hourly=answer.lower_bound,
                    relaxed_rate=relaxed_rate,
                    is_open=not answer.exact,
                )
            )
            low, answer = high, self._ask(high, width=GROWTH - 1)
            if math.isinf(answer.lower_bound) or self.clock() >= self.deadline_s:
                return intervals, math.inf if math.isinf(answer.lower_bound) else relaxed_rate

    def _settle(self, interval: Interval) -> list[Interval] | None:
        """Return what is left open of an interval after one more question, or None where it cannot be settled."""
        lowest = interval.low if interval.is_open else interval.low * (1 + STEP)
        start = max(lowest, interval.hourly / self.best_rate)
        if start >= interval.high:
            return []
        if interval.is_asked and start == lowest:
            return self._split(interval)
        width = interval.high / start - 1
        answer = self._ask(start, width=width)
        hourly = max(answer.lower_bound, interval.hourly)
        if math.isinf(hourly):
            return []
        middle, is_asked = interval.high, False
        is_open = not answer.exact and not self._is_settled(hourly / start)
        if is_open:
            if interval.high / start < 1 + NARROWEST:
                return None
            middle, is_asked = math.sqrt(start * interval.high), width < NARROW
        else:
            asked, start = start, max(start, self._settled_up_to(start, hourly, interval.high))
            if self.hourly.has_egress and start < interval.high:
                start = max(start, self._settled_by_egress(asked, hourly, interval.high))
            if start >= interval.high:
                return []
            step = math.log(max(hourly / asked / self.best_rate, 1.0))
            if self.hourly.limits_bind and math.log(interval.high / start) > WIDE * step:
                middle = math.sqrt(start * interval.high)  # so that the upper half has a bound of its own soon
        ends = [(start, middle), (middle, interval.high)] if middle < interval.high else [(start, middle)]
        return [
            Interval(
                rate=max(hourly / high, interval.relaxed_rate),
                low=low,
                high=high,
                hourly=hourly,
                relaxed_rate=interval.relaxed_rate,
                is_open=is_open or low > start,
                is_asked=is_asked and low == start,
            )
            for low, high in ends
        ]

    def _split(self, interval: Interval) -> list[Interval] | None:
        """Return both halves of an interval whose lower end is known as well as it can be, after one question."""
        if interval.high / interval.low < 1 + NARROWEST:
            return None
        middle = math.sqrt(interval.low * interval.high)
        hourly = max(self._ask(middle, width=interval.high / middle - 1).lower_bound, interval.hourly)
        rate = max(interval.hourly / middle, interval.relaxed_rate)
        parts = [replace(interval, rate=rate, high=middle)]
        if not math.isinf(hourly):
            rate = max(hourly / interval.high, interval.relaxed_rate)
            parts.append(replace(interval, rate=rate, low=middle, hourly=hourly, is_open=True, is_asked=False))
        return parts

    def _settled_up_to(self, start: float, hourly: float, high: float) -> float:
        """Return a throughput below which nothing is news, from `start` on, by a bound for a range at once.

        A range as wide as the plain bound settles is certain; one a few times as wide is tried, more daringly while it
        works out, and ever more seldom while it does not. It pays where some stages have so many units that one more
        changes little.
        """
        if self._rest > 0 or self.best_route is None:
            self._rest -= 1
            return start
        width = max(math.log(hourly / self.best_rate / start), STEP)
        end = start * math.exp(min(self._stride * width, math.log(high / start)))
        rate = self.hourly.bound_between(start, end)
        if self._is_settled(rate):
            self._passed_rate = min(self._passed_rate, rate)
            self._stride, self._pause = self._stride * 2, 1
            return end
        self._stride, self._pause = max(self._stride / 2, 2.0), min(2 * self._pause, 32)
        self._rest = self._pause
        return start

    def _settled_by_egress(self, start: float, hourly: float, high: float) -> float:
        """Return a throughput below which nothing is news, from `start` up to `high`, where bytes are paid for.

        The plain bound lets a plan at y pay the egress of `start` only, which is far from what it pays where bytes cost
        more than units. With the units for `start` and the egress of y, hourly(y) is the least of lines in y, one a
        route, so it is concave: above the chord a + b y from `start` to `high`. And (a + b y) / y is no better than the
        best up to y = a / (best - b).
        """
        end = self.hourly.at(start, cutoff=self.best_rate * high * 1.02, egress_at=high).lower_bound
        if math.isinf(end):
            return high
        slope = (end - hourly) / (high - start)
        if slope >= self.best_rate:
            return high
        return (hourly - slope * start) / (self.best_rate - slope)

    def _ask(self, samples_per_s: float, *, width: float = 0.0) -> HourlyCost:
        """Ask for the hourly price at the low end of so wide an interval; learn from the route in the answer."""
        cutoff = self.best_rate * samples_per_s * 1.02 if samples_per_s > 0 else math.inf
        self.questions += 1
        self.hourly.needs_plan = self.best_route is None or self.questions % SELDOM == 0
        answer = self.hourly.at(samples_per_s, cutoff=cutoff, within=LOOSE * width if width > NARROW else 0.0)
        if answer.route is not None:
            self._learn(self.hourly.rate(answer.route), answer.route)
            if answer.route.key() not in self._polished:
                self._polished.add(answer.route.key())
                self._learn(*self.hourly.provisioned(answer.route, self.floor))
        return answer

    def _learn(self, rate: float, route: Route | None) -> None:
        """Keep a route that is cheaper than the best."""
        if route is not None and rate < self.best_rate:
            self.best_rate, self.best_route = rate, route

    def _is_settled(self, rate: float) -> bool:
        """Say whether nothing of this rate or above is news: exactly so at first, within the tolerance later on."""
        tolerance = STEP if self.questions < PATIENCE else OPTIMAL_WITHIN * MARGIN
        return rate >= self.best_rate * (1 - tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The fastest route within the cap, its samples/s, and whether nothing faster exists."""

    route: Route
    samples_per_s: float
    proven: bool


def fastest_within(
    hourly: HourlyPrices, *, max_cost_per_hour: float, at_least: float, clock: Clock, deadline_s: float
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


def _affordable(hourly: HourlyPrices, samples_per_s: float, cap: float) -> tuple[Route | None, bool]:
    """Return a plan at this throughput within the cap, or None and whether that is proven."""
    answer = hourly.at(samples_per_s, cutoff=cap * (1 + STEP))
    if answer.route is not None and hourly.price(answer.route) <= cap:
        return answer.route, True
    return None, answer.exact
