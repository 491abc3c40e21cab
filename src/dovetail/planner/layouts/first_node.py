"""What every plan pays by the hour, however fast it is: the first node, put on top of other answers.

With c USD an hour for it, a plan that runs at x samples/s costs `(hourly(x) + c) / x` for each of them. Both what
`hourly` promises, that it never falls and that it is concave where bytes alone differ, and its bounds stay: over x in
[low, high], c / x is no less than c / high.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from dovetail.planner.cheapest_route import Route
from dovetail.planner.hourly import HourlyCost, HourlyPrices


class WithFirstNode:
    """Answers as another gives them, with so many USD an hour more for every plan."""

    def __init__(self, units: HourlyPrices, per_hour: float) -> None:
        """Stand on answers for units."""
        self._units, self._per_hour = units, per_hour

    @property
    def needs_plan(self) -> bool:
        """Whether a legal plan is worth more than a bound."""
        return self._units.needs_plan

    @needs_plan.setter
    def needs_plan(self, needs: bool) -> None:
        self._units.needs_plan = needs

    @property
    def is_late(self) -> Callable[[], bool]:
        """Say whether time is up."""
        return self._units.is_late

    @is_late.setter
    def is_late(self, is_late: Callable[[], bool]) -> None:
        self._units.is_late = is_late

    @property
    def limits_bind(self) -> bool:
        """Whether limits bound the last answer."""
        return self._units.limits_bind

    @property
    def least_egress_rate(self) -> float:
        """What all plans pay for bytes between sites, left out of answers, as USD per hour over samples/s."""
        return self._units.least_egress_rate

    @property
    def has_egress(self) -> bool:
        """Whether some plans pay for bytes."""
        return self._units.has_egress

    def at(
        self, samples_per_s: float, *, cutoff: float = math.inf, egress_at: float | None = None, within: float = 0.0
    ) -> HourlyCost:
        """Return the cheapest plan that reaches `samples_per_s`; above `cutoff` a bound is all that is asked for."""
        found = self._units.at(samples_per_s, cutoff=cutoff - self._per_hour, egress_at=egress_at, within=within)
        return replace(found, lower_bound=found.lower_bound + self._per_hour)

    def relaxed(self, samples_per_s: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s at this throughput or at any higher one."""
        return self._units.relaxed(samples_per_s)

    def bound_between(self, low: float, high: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s that runs at `low` up to `high` samples/s."""
        return self._units.bound_between(low, high) + self._per_hour / high

    def provisioned(self, route: Route, min_samples_per_s: float) -> tuple[float, Route | None]:
        """Return the units of a route that are the cheapest without the first node, at their rate with it."""
        _, found = self._units.provisioned(route, min_samples_per_s)
        return (math.inf, None) if found is None else (self.rate(found), found)

    def price(self, route: Route) -> float:
        """Return what a route costs per hour, bytes left out."""
        return self._units.price(route) + self._per_hour

    def rate(self, route: Route) -> float:
        """Return the USD per hour over samples/s of a route."""
        return self._units.rate(route) + self._per_hour / self.pace(route)

    def pace(self, route: Route) -> float:
        """Return the samples/s of a route."""
        return self._units.pace(route)

    def slowest_pace(self) -> float:
        """Return samples/s that any plan reaches."""
        return self._units.slowest_pace()
