"""Pricing proposed plans on machines: types per layer in, and the cheapest layout that runs them there out."""

from __future__ import annotations

import itertools
import math

import numpy as np

from dovetail.errors import PlanError
from dovetail.planner.arrays import Ints, ProblemArrays
from dovetail.planner.baselines.score import A_STAGE_TOO_MANY, CANNOT_BE, PENALTY, Proposal, Scorer, Scores
from dovetail.planner.cheapest_route import Route
from dovetail.planner.demands import Demands
from dovetail.planner.exact import CheapestSearch, Clock
from dovetail.planner.layouts.compared import only_on
from dovetail.planner.layouts.families import hourly_prices
from dovetail.spec import Problem

MOST_CHOICES = 20_000
"""Of brute force on machines, where each choice is a search of its own."""


class LayoutScorer(Scorer):
    """Prices proposals for one problem with machines, or with something beside its layers.

    A proposal says where layers run. Its units, servers and readers, and whether one process does it all, are the
    cheapest that there are for that: units that were proposed are left aside.
    """

    def __init__(self, problem: Problem, arrays: ProblemArrays, demands: Demands, *, clock: Clock) -> None:
        super().__init__(arrays, min_samples_per_s=problem.min_samples_per_s, max_stages=demands.max_stages)
        self._problem, self._demands, self._clock = problem, demands, clock
        self._known: dict[bytes, tuple[float, float, Route | None]] = {}

    def score(self, proposal: Proposal) -> Scores:
        """Return what each plan costs."""
        assignments = np.ascontiguousarray(proposal.assignments, dtype=np.int64)
        priced = [self._priced(assignment) for assignment in assignments]
        rates = np.array([rate for rate, _, _ in priced])
        legal = rates[np.isfinite(rates)]
        if len(legal):
            self.dearest_log_rate = max(self.dearest_log_rate, math.log(legal.max()))
        known = self.dearest_log_rate if math.isfinite(self.dearest_log_rate) else 0.0
        units = np.zeros_like(assignments)
        for row, (_, _, route) in zip(units, priced, strict=True):
            if route is not None:
                row[: len(route.units)] = route.units
        return Scores(rates, np.array([shortfall for _, shortfall, _ in priced]), units, known)

    def route(self, assignment: Ints, units: Ints) -> Route:
        """Return one priced proposal as a route."""
        route = self._priced(assignment)[2]
        if route is None:
            raise AssertionError("a plan that cannot be has no route")
        return route

    def _priced(self, assignment: Ints) -> tuple[float, float, Route | None]:
        """Return rate, shortfall and route of layers on these types."""
        key = assignment.tobytes()
        if key not in self._known:
            self._known[key] = self._price(assignment)
        return self._known[key]

    def _price(self, assignment: Ints) -> tuple[float, float, Route | None]:
        stages = 1 + int((np.diff(assignment) != 0).sum())
        if stages > self.max_stages:
            return math.inf, PENALTY + A_STAGE_TOO_MANY * (stages - self.max_stages), None
        alone = only_on(self._problem, [self._problem.resources[t].name for t in assignment])
        if alone is None:
            return math.inf, CANNOT_BE, None
        rate, route = cheapest_layout(alone, self._demands, clock=self._clock)
        return rate, 0.0 if route is not None else PENALTY, route


def cheapest_layout(problem: Problem, demands: Demands, *, clock: Clock) -> tuple[float, Route | None]:
    """Return the least USD per hour over samples/s of a problem whose layers each run on one type, and its route."""
    prices = hourly_prices(problem, demands)
    deadline_s = clock() + demands.time_limit_s
    search = CheapestSearch(prices, min_samples_per_s=problem.min_samples_per_s, clock=clock, deadline_s=deadline_s)
    found = search.run()
    return (math.inf, None) if found is None else (found.rate, found.route)


def cheapest_layout_of_all(problem: Problem, demands: Demands, *, clock: Clock) -> tuple[Route | None, float]:
    """Return the cheapest layout by trying every choice of types, and its USD per hour over samples/s."""
    names = [resource.name for resource in problem.resources]
    choices = len(names) ** len(problem.layers)
    if choices > MOST_CHOICES:
        raise PlanError(
            f"brute force would have to search the layouts of {choices:,} choices of types ({len(names)} types, "
            f"{len(problem.layers)} layers), and stops at {MOST_CHOICES:,}",
            hint="use --method exact: it proves its plan without trying them all",
        )
    best, best_rate = None, math.inf
    for types in itertools.product(names, repeat=len(problem.layers)):
        if demands.max_stages is not None and len(list(itertools.groupby(types))) > demands.max_stages:
            continue
        alone = only_on(problem, list(types))
        if alone is None:
            continue
        rate, route = cheapest_layout(alone, demands, clock=clock)
        if rate < best_rate:
            best, best_rate = route, rate
    return best, best_rate
