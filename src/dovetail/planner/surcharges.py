"""Surcharges on scarce units: a bound on what any plan within limits costs per hour, and legal plans met on the way.

For any surcharges m_t >= 0

    bound(m) = cheapest(price + m) - sum_t m_t limit_t   <=   the optimum within limits,

and the highest bound is sought. Every route that a dynamic programme returned is a plane above it,

    bound(m) <= price of the route + sum_t m_t (used_t - limit_t),

so the planes of all routes seen say where the highest point can be: a small linear programme. Routes are kept from one
throughput to the next, where their planes have moved but little, so that a few dynamic programmes are enough. The next
point is taken half-way between the best so far and where the planes meet, which keeps it from swinging.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numba as nb
import numpy as np

from dovetail.planner.arrays import Floats, ProblemArrays
from dovetail.planner.cheapest_route import Route, Workspace, cheapest, follow
from dovetail.planner.provision import egress_rate, stage_list
from dovetail.planner.stage_kernel import whole_units

MOST_ROUTES = 240
"""So many planes are kept, the newest."""
MOST_ITERATIONS = 60
CONVERGED = 0.02
"""Where the planes leave less than this part of the gap between bound and best price to be gained, it is left."""
CLOSE = 1e-3
"""And where they leave less than this part of the bound."""
REPAIRS = 10
"""Dynamic programmes that a legal plan is sought with near the best surcharges, where none was met."""


@nb.njit(cache=True)
def route_at(arrays, types, lasts, target_s, used):  # type: ignore[no-untyped-def]
    """Return what a route's stages cost per hour at a throughput, and write the units they need; infinity for none."""
    parts = stage_list(arrays, types, lasts, len(types))
    used[:] = 0.0
    price = egress_rate(arrays, types, lasts, len(types)) * arrays.batch / target_s if len(parts) > 0 else math.inf
    for s in range(len(parts)):
        units = whole_units(parts[s], target_s)
        if units > arrays.limit[types[s]]:
            return math.inf
        used[types[s]] += units
        price += arrays.price_per_hour[types[s]] * units
    return price


@dataclass(slots=True)
class Surcharged:
    """What a search for surcharges found: a bound, where it holds, and the cheapest legal route met, if any."""

    bound: float
    surcharge: Floats
    price: float = math.inf
    route: Route | None = None


class Surcharges:
    """Surcharges for one problem, with the routes that were met at earlier throughputs."""

    def __init__(self, arrays: ProblemArrays, work: Workspace) -> None:
        self._limit = arrays.limit.astype(np.float64)
        self._work = work
        self._routes: list[Route] = []
        self._keys: set[bytes] = set()
        self.best = np.zeros(arrays.num_types)
        """Where the bound of the last search was highest."""
        room = arrays.num_layers
        self._buffers = (np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64))

    def search(
        self,
        arrays: ProblemArrays,
        target_s: float,
        *,
        cutoff: float,
        within: float,
        needs_plan: bool,
        is_late: Callable[[], bool],
    ) -> Surcharged:
        """Return the best bound up to `cutoff`, or one that is off by the fraction `within`.

        With `needs_plan` more is done for a legal route.
        """
        found = Surcharged(bound=-math.inf, surcharge=self.best)
        planes = _Planes(self._limit, arrays.num_types)
        used = np.zeros(arrays.num_types)
        for route in self._routes:
            price = float(route_at(arrays, route.types, route.lasts, target_s, used))
            if math.isfinite(price):
                planes.add(price, used)
                self._keep_legal(found, price, used, route, arrays, target_s)
        current = self.best
        for iteration in range(MOST_ITERATIONS):
            _, bound = self._ask(arrays, target_s, current, planes, found)
            if bound == math.inf:
                found.bound = math.inf
                return found
            if bound > found.bound:
                found.bound, found.surcharge = bound, current
            goal = min(cutoff, found.price)
            if found.bound >= goal or is_late():
                break
            most = 2 * found.surcharge + arrays.price_per_hour  # of the next step: far away the planes know nothing
            highest, meeting = planes.highest(goal, most)
            close = min(CONVERGED * (goal - found.bound), CLOSE * found.bound)
            if highest - found.bound <= max(close, within * found.bound):
                break
            current = (found.surcharge + meeting) / 2 if iteration % 4 else meeting
        self.best = found.surcharge
        if needs_plan and found.route is None and not is_late():
            self._repair(arrays, target_s, found, planes, is_late)
        return found

    def _ask(
        self, arrays: ProblemArrays, target_s: float, surcharge: Floats, planes: _Planes, found: Surcharged
    ) -> tuple[Route | None, float]:
        """Ask for the cheapest route by surcharged prices; keep it, and return it with the bound that it gives."""
        value = float(cheapest(arrays, self._work, arrays.price_per_hour + surcharge, target_s, 1.0))
        if value == math.inf:
            return None, value
        count = follow(arrays, self._work, target_s, *self._buffers)
        types, lasts, units = (buffer[:count].copy() for buffer in self._buffers)
        route = Route(types=types, lasts=lasts, units=units)
        used = route.used(arrays.num_types).astype(np.float64)
        refund = float(surcharge @ self._limit)
        price = value - float(surcharge @ used)
        planes.add(price, used)
        self._keep_legal(found, price, used, route, arrays, target_s)
        key = route.key()
        if key not in self._keys:
            self._keys.add(key)
            self._routes.append(route)
            if len(self._routes) > MOST_ROUTES:
                self._keys.discard(self._routes.pop(0).key())
        return route, value - refund

    def _keep_legal(
        self, found: Surcharged, price: float, used: Floats, route: Route, arrays: ProblemArrays, target_s: float
    ) -> None:
        """Keep a route that is legal and cheaper than any before."""
        if price < found.price and (used <= self._limit).all():
            found.price, found.route = price, _with_units(arrays, route, target_s)

    def _repair(
        self, arrays: ProblemArrays, target_s: float, found: Surcharged, planes: _Planes, is_late: Callable[[], bool]
    ) -> None:
        """Raise the surcharges of what is used too much until a route is legal."""
        current = found.surcharge.copy()
        for _ in range(REPAIRS):
            route, _ = self._ask(arrays, target_s, current, planes, found)
            if route is None or found.route is not None or is_late():
                return
            over = np.maximum(route.used(arrays.num_types) / self._limit - 1, 0.0)
            current = current + over.clip(max=1.0) * (arrays.price_per_hour + current)


def _with_units(arrays: ProblemArrays, route: Route, target_s: float) -> Route:
    """Return a route with the units that its stages need at a throughput."""
    parts = stage_list(arrays, route.types, route.lasts, len(route.types))
    return route._replace(units=np.array([int(whole_units(part, target_s)) for part in parts], dtype=np.int64))


class _Planes:
    """Upper bounds of the bound, one a route."""

    def __init__(self, limit: Floats, num_types: int) -> None:
        self._limit, self._num_types = limit, num_types
        self._price: list[float] = []
        self._excess: list[Floats] = []

    def add(self, price: float, used: Floats) -> None:
        """Add the plane of a route."""
        self._price.append(price)
        self._excess.append(used - self._limit)

    def highest(self, goal: float, most: Floats) -> tuple[float, Floats]:
        """Return the highest that all planes allow, `goal` at most, for surcharges up to `most`, and where that is."""
        from scipy.optimize import linprog  # noqa: PLC0415 - takes a while, and most problems have no limits that bind

        excess, price = np.array(self._excess), np.array(self._price)
        scarce = np.flatnonzero((excess > 0).any(axis=0))
        rows = np.column_stack([np.ones(len(price)), -excess[:, scarce]])
        objective = np.zeros(1 + len(scarce))
        objective[0] = -1.0
        bounds = [(None, goal)] + [(0.0, each) for each in most[scarce]]
        solved = linprog(objective, A_ub=rows, b_ub=price, bounds=bounds, method="highs")
        surcharge = np.zeros(self._num_types)
        if solved.x is None:
            return math.inf, surcharge
        surcharge[scarce] = np.maximum(solved.x[1:], 0.0)
        return float(solved.x[0]), surcharge
