"""The cheapest plan per hour at a given throughput: one question, asked many times by everything that plans.

Bytes between sites are paid by the byte, so an hour at throughput x costs `price of the units + x * egress of the
route`. Both parts never fall as x rises, which is all that the searches stand on. What every plan pays for bytes, the
`least_egress_rate`, decides nothing and would only blunt their bounds: answers leave it out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.cheapest_route import Route, cheapest, follow, workspace
from dovetail.planner.provision import egress_rate, pace, provision
from dovetail.planner.stage_kernel import STEP
from dovetail.planner.within_limits import OUT_OF_WORK, label_search, price_bound

PRICE_ITERATIONS = 60
LABEL_EFFORT = 3_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """No plan at this throughput costs less than `lower_bound` an hour; `route` is a legal one that was met, if any.

    `exact` says that the two agree, or that the bound has reached the cutoff. What all plans pay for bytes is left out.
    """

    lower_bound: float
    route: Route | None
    exact: bool


class Hourly:
    """Answers for one problem; holds the arrays that the kernels fill, and the last surcharges as a warm start."""

    def __init__(self, arrays: ProblemArrays, *, max_stages: int | None = None) -> None:
        """Set up for one problem; prices and limits can be replaced per question."""
        self.arrays = arrays
        self.work = workspace(arrays, max_stages)
        self.effort = LABEL_EFFORT
        self._surcharge = np.zeros(arrays.num_types)
        self.least_egress_rate = self._least_egress_rate()
        room = arrays.num_layers
        self._buffers = (np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64))

    def at(self, samples_per_s: float, *, cutoff: float = math.inf, egress_at: float | None = None) -> Answer:
        """Return the cheapest plan that reaches `samples_per_s`; above `cutoff` a bound is all that is asked for.

        With `egress_at`, units are those for `samples_per_s` and egress that of another throughput.
        """
        arrays, paying = self.arrays, samples_per_s
        if egress_at is not None:
            paying = egress_at
            arrays = arrays._replace(class_usd_per_byte=arrays.class_usd_per_byte * (egress_at / samples_per_s))
        target_s = arrays.batch / samples_per_s if samples_per_s > 0 else math.inf
        paid_by_all = self.least_egress_rate * paying
        value = cheapest(arrays, self.work, arrays.price_per_hour, target_s, 1.0)
        if value == math.inf:
            return Answer(lower_bound=math.inf, route=None, exact=True)
        route = self._route(follow(arrays, self.work, target_s, *self._buffers))
        if (route.used(arrays.num_types) <= arrays.limit).all():
            return Answer(lower_bound=value - paid_by_all, route=route, exact=True)
        if value >= cutoff + paid_by_all:
            return Answer(lower_bound=value - paid_by_all, route=None, exact=True)
        answer = self._within_limits(arrays, target_s, value, cutoff + paid_by_all)
        return replace(answer, lower_bound=answer.lower_bound - paid_by_all)

    def relaxed(self, samples_per_s: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s at this throughput or at any higher one."""
        return self.bound_between(samples_per_s, math.inf)

    def bound_between(self, low: float, high: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s that runs at `low` up to `high` samples/s.

        There a stage has at least the whole units that it needs at `low`, and at least the real units that it needs at
        its own pace x, whose number over x never falls. So for each stage

            units / x  >=  max(whole(low) / high, real(low) / low)

        and the sum over stages of the larger one is stronger than either sum. Egress over x is the same at any x.
        """
        arrays = self.arrays
        share = low / high if math.isfinite(high) else 0.0
        hourly = cheapest(arrays, self.work, arrays.price_per_hour, arrays.batch / low, share)
        return float(hourly / low) - self.least_egress_rate

    def provisioned(self, route: Route, min_samples_per_s: float) -> tuple[float, Route | None]:
        """Return the least USD per hour over samples/s of the route's stages, and the route with those units."""
        units = np.zeros_like(route.units)
        rate = provision(self.arrays, route.types, route.lasts, len(route.types), min_samples_per_s, STEP, units)
        return float(rate) - self.least_egress_rate, None if math.isinf(rate) else route._replace(units=units)

    def price(self, route: Route) -> float:
        """Return what the units of a route cost per hour."""
        return float(self.arrays.price_per_hour[route.types] @ route.units)

    def rate(self, route: Route) -> float:
        """Return the USD per hour over samples/s of a route."""
        egress = float(egress_rate(self.arrays, route.types, route.lasts, len(route.types)))
        return self.price(route) / self.pace(route) + egress - self.least_egress_rate

    def pace(self, route: Route) -> float:
        """Return the samples/s of a route."""
        return float(pace(self.arrays, route.types, route.lasts, route.units))

    def slowest_pace(self) -> float:
        """Return samples/s that any plan reaches: every layer on its slowest type, and every cut paid."""
        arrays = self.arrays
        layers = [arrays.compute_serial_s, arrays.compute_shared_s, arrays.comm_serial_s, arrays.comm_shared_s]
        layer_s = sum(float(np.diff(sums, axis=1).max(axis=0).sum()) for sums in layers)
        s_per_byte = (arrays.class_s_per_byte + arrays.class_site_s_per_byte).max()
        cuts_s = float((arrays.crossing_bytes * s_per_byte + arrays.class_latency_s.max()).sum())
        return arrays.batch / (layer_s + 2 * cuts_s)

    def _least_egress_rate(self) -> float:
        """Return what every plan pays at least for bytes between sites, per sample, in USD per hour over samples/s."""
        arrays = self.arrays
        if not arrays.has_egress:
            return 0.0
        pace = self.slowest_pace()
        hourly = cheapest(arrays, self.work, np.zeros(arrays.num_types), arrays.batch / pace, 1.0)
        return float(hourly) / pace if math.isfinite(hourly) else 0.0

    def _within_limits(self, arrays: ProblemArrays, target_s: float, value: float, cutoff: float) -> Answer:
        """Return the answer where the cheapest route uses more units than there are."""
        dearest_cuts = float(arrays.crossing_bytes.sum() * arrays.class_usd_per_byte.max()) * 3600 / target_s
        impossible = (float(arrays.price_per_hour @ arrays.limit) + dearest_cuts) * (1 + 1e-9)  # more than there is
        cutoff = min(cutoff, impossible)
        limit = arrays.limit.astype(np.float64)
        arguments = (arrays, self.work, arrays.price_per_hour, limit, target_s)
        bound, price, count = price_bound(*arguments, cutoff, self._surcharge, PRICE_ITERATIONS, *self._buffers)
        route = self._route(count) if count else None
        bound = max(bound, value)
        if bound >= min(cutoff, price * (1 - 1e-12)):
            return Answer(lower_bound=math.inf if bound >= impossible else min(bound, price), route=route, exact=True)
        cheapest(arrays, self.work, arrays.price_per_hour + self._surcharge, target_s, 1.0)
        goal = min(cutoff, price)
        ended, found, count = label_search(
            arrays, self.work, arrays.price_per_hour, arrays.limit, target_s, goal, self._surcharge, self.effort,
            *self._buffers,
        )  # fmt: skip
        if ended == OUT_OF_WORK:
            return Answer(lower_bound=bound, route=route, exact=False)
        if count:
            route = self._route(count)
        lower_bound = min(found, goal)
        return Answer(lower_bound=math.inf if lower_bound >= impossible else lower_bound, route=route, exact=True)

    def _route(self, count: int) -> Route:
        """Return a copy of the first `count` stages in the buffers."""
        types, lasts, units = (buffer[:count].copy() for buffer in self._buffers)
        return Route(types=types, lasts=lasts, units=units)
