"""The cheapest plan per hour at a given throughput, within limits of types: asked by everything that plans.

Limits couple the stages, so the plain dynamic programme no longer applies. Two steps mend that.

1. Lagrange: put a surcharge on every unit of a scarce type (`Surcharges`). Often the bound is proof enough.
2. Labels: extend routes layer by layer (`label_search`). What is left at the end is the optimum.

Small problems need no new surcharges: there labels come first, by those of the question before, with a little effort.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dovetail.planner.arrays import Floats, ProblemArrays
from dovetail.planner.cheapest_route import Route, cheapest, follow, workspace
from dovetail.planner.labels import OUT_OF_WORK, Labels, label_search, room_for_labels
from dovetail.planner.provision import egress_rate, pace, provision
from dovetail.planner.stage_kernel import STEP
from dovetail.planner.surcharges import Surcharges

LABEL_EFFORT = 3_000_000
FIRST_EFFORT = 40
"""Of labels that come first: how often they may look at as many stages as there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyCost:
    """No plan at this throughput costs less than `lower_bound` an hour; `route` is a legal one that was met, if any.

    `exact` says that the two agree, or that the bound has reached the cutoff. What all plans pay for bytes is left out.
    """

    lower_bound: float
    route: Route | None
    exact: bool


class HourlyPrices(Protocol):
    """What the searches ask: the cheapest hourly price at a throughput, and bounds on it."""

    needs_plan: bool
    is_late: Callable[[], bool]

    @property
    def limits_bind(self) -> bool:
        """Whether limits bound the last answer."""
        ...

    @property
    def least_egress_rate(self) -> float:
        """What all plans pay for bytes between sites, left out of answers, as USD per hour over samples/s."""
        ...

    @property
    def has_egress(self) -> bool:
        """Whether some plans pay for bytes."""
        ...

    def at(
        self, samples_per_s: float, *, cutoff: float = math.inf, egress_at: float | None = None, within: float = 0.0
    ) -> HourlyCost:
        """Return the cheapest plan that reaches `samples_per_s`; above `cutoff` a bound is all that is asked for."""
        ...

    def relaxed(self, samples_per_s: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s at this throughput or at any higher one."""
        ...

    def bound_between(self, low: float, high: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s that runs at `low` up to `high` samples/s."""
        ...

    def provisioned(self, route: Route, min_samples_per_s: float) -> tuple[float, Route | None]:
        """Return the least USD per hour over samples/s of the route's stages, and the route with those units."""
        ...

    def price(self, route: Route) -> float:
        """Return what a route costs per hour, bytes left out."""
        ...

    def rate(self, route: Route) -> float:
        """Return the USD per hour over samples/s of a route."""
        ...

    def pace(self, route: Route) -> float:
        """Return the samples/s of a route."""
        ...

    def slowest_pace(self) -> float:
        """Return samples/s that any plan reaches."""
        ...


class Hourly:
    """Answers for one problem; holds the arrays that the kernels fill, and the last surcharges as a warm start.

    Bytes between sites are paid by the byte, so an hour at throughput x costs `price of the units + x * egress of the
    route`. Both parts never fall as x rises, which is all that the searches stand on. What every plan pays for bytes,
    the `least_egress_rate`, decides nothing and would only blunt their bounds: answers leave it out.
    """

    def __init__(self, arrays: ProblemArrays, *, max_stages: int | None = None) -> None:
        """Set up for one problem; prices and limits can be replaced per question."""
        self.arrays = arrays
        self.work = workspace(arrays, max_stages)
        self.effort = LABEL_EFFORT
        self._surcharges = Surcharges(arrays, self.work)
        self.limits_bind = False  # as far as the last answer says: then surcharges come first
        self.needs_plan = True
        self.is_late: Callable[[], bool] = lambda: False
        self._labels: Labels | None = None
        self._pause, self._rest = 1, 0  # labels come first ever more seldom while they do not get to an end
        self.least_egress_rate = self._least_egress_rate()
        room = arrays.num_layers
        self._buffers = (np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64))

    def at(
        self, samples_per_s: float, *, cutoff: float = math.inf, egress_at: float | None = None, within: float = 0.0
    ) -> HourlyCost:
        """Return the cheapest plan that reaches `samples_per_s`; above `cutoff` a bound is all that is asked for.

        With `egress_at`, units are those for `samples_per_s` and egress that of another throughput. A bound that is off
        by the fraction `within` is enough.
        """
        arrays, paying = self.arrays, samples_per_s
        if egress_at is not None:
            paying = egress_at
            arrays = arrays._replace(class_usd_per_byte=arrays.class_usd_per_byte * (egress_at / samples_per_s))
        target_s = arrays.batch / samples_per_s if samples_per_s > 0 else math.inf
        paid_by_all = self.least_egress_rate * paying
        value = -math.inf
        if not self.limits_bind:
            value = cheapest(arrays, self.work, arrays.price_per_hour, target_s, 1.0)
            if value == math.inf:
                return HourlyCost(lower_bound=math.inf, route=None, exact=True)
            route = self._route(follow(arrays, self.work, target_s, *self._buffers))
            if (route.used(arrays.num_types) <= arrays.limit).all():
                return HourlyCost(lower_bound=value - paid_by_all, route=route, exact=True)
            if value >= cutoff + paid_by_all:
                return HourlyCost(lower_bound=value - paid_by_all, route=None, exact=True)
        answer = self._within_limits(arrays, target_s, value, cutoff + paid_by_all, within)
        return replace(answer, lower_bound=answer.lower_bound - paid_by_all)

    @property
    def has_egress(self) -> bool:
        """Whether some cut pays for its bytes."""
        return self.arrays.has_egress

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

    def _within_limits(
        self, arrays: ProblemArrays, target_s: float, value: float, cutoff: float, within: float
    ) -> HourlyCost:
        """Return the answer where the cheapest route uses more units than there are."""
        dearest_cuts = float(arrays.crossing_bytes.sum() * arrays.class_usd_per_byte.max()) * 3600 / target_s
        impossible = (float(arrays.price_per_hour @ arrays.limit) + dearest_cuts) * (1 + 1e-9)  # more than there is
        cutoff = min(cutoff, impossible)
        answer = self._by_labels_first(arrays, target_s, cutoff, impossible)
        if answer is not None:
            return answer
        met = self._surcharges.search(
            arrays, target_s, cutoff=cutoff, within=within, needs_plan=self.needs_plan, is_late=self.is_late
        )
        bound, price, route = met.bound, met.price, met.route
        self.limits_bind = bool(met.surcharge.any())
        bound = max(bound, value)
        if bound >= min(cutoff, price * (1 - 1e-12)):
            return HourlyCost(
                lower_bound=math.inf if bound >= impossible else min(bound, price), route=route, exact=True
            )
        if within > 0 or self.is_late():
            return HourlyCost(lower_bound=bound, route=route, exact=False)
        goal = min(cutoff, price)
        found = self._by_labels(arrays, target_s, goal, met.surcharge, self.effort)
        if found is None:
            return HourlyCost(lower_bound=bound, route=route, exact=False)
        lower_bound = min(found[0], goal)
        return HourlyCost(
            lower_bound=math.inf if lower_bound >= impossible else lower_bound, route=found[1] or route, exact=True
        )

    def _by_labels_first(
        self, arrays: ProblemArrays, target_s: float, cutoff: float, impossible: float
    ) -> HourlyCost | None:
        """Return the answer where labels get to it with the surcharges of before and little effort, else None."""
        if self._rest > 0:
            self._rest -= 1
            return None
        stages = arrays.num_layers * (arrays.num_layers + 1) // 2 * arrays.num_types
        found = self._by_labels(arrays, target_s, cutoff, self._surcharges.best, FIRST_EFFORT * stages)
        if found is None:
            self._pause = min(2 * self._pause, 64)
            self._rest = self._pause
            return None
        self._pause = 1
        lower_bound = min(found[0], cutoff)
        return HourlyCost(
            lower_bound=math.inf if lower_bound >= impossible else lower_bound, route=found[1], exact=True
        )

    def _by_labels(
        self, arrays: ProblemArrays, target_s: float, goal: float, surcharge: Floats, effort: int
    ) -> tuple[float, Route | None] | None:
        """Return price and route of the cheapest plan below `goal`, infinity for none; None where effort ran out."""
        cheapest(arrays, self.work, arrays.price_per_hour + surcharge, target_s, 1.0)
        scarce = np.flatnonzero(arrays.price_per_hour * (arrays.limit + 1) < goal)
        ended, price, count = label_search(
            arrays,
            self.work,
            self._room_for_labels(len(scarce)),
            arrays.price_per_hour,
            arrays.limit,
            target_s,
            goal,
            surcharge,
            scarce,
            min(effort, self.effort),
            *self._buffers,
        )
        return None if ended == OUT_OF_WORK else (float(price), self._route(count) if count else None)

    def _room_for_labels(self, num_scarce: int) -> Labels:
        """Return room for a label search with so many scarce types."""
        if self._labels is None or self._labels.used.shape[1] != num_scarce:
            self._labels = room_for_labels(self.arrays, num_scarce)
        return self._labels

    def _route(self, count: int) -> Route:
        """Return a copy of the first `count` stages in the buffers."""
        types, lasts, units = (buffer[:count].copy() for buffer in self._buffers)
        return Route(types=types, lasts=lasts, units=units)
