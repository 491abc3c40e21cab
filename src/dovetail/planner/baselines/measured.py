"""Scoring by real runs: what a plan costs at the speed it was seen to reach, not at the modelled one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dovetail.errors import PlanError
from dovetail.planner.arrays import Ints
from dovetail.planner.baselines.score import PENALTY, Proposal, Scorer, Scores
from dovetail.planner.cheapest_route import Route
from dovetail.planner.provision import egress_rate
from dovetail.planner.result import to_stages
from dovetail.spec import Problem, Stage

Measure = Callable[[Problem, Sequence[Stage]], float]
"""Runs a plan and returns the samples/s it reached."""


class MeasuredScorer:
    """Provisions proposals by the model, then runs each legal one and prices it at its measured speed.

    A plan that was run before is not run again: its first measurement stands.
    """

    def __init__(self, scorer: Scorer, problem: Problem, measure: Measure) -> None:
        """Stand on a scorer that knows the model."""
        self.scorer = scorer
        self.problem = problem
        self.measure = measure
        self.seen: dict[bytes, float] = {}

    def score(self, proposal: Proposal) -> Scores:
        """Return what each plan costs at the speed it reached."""
        modelled = self.scorer.score(proposal)
        rates, shortfalls = modelled.rates.copy(), modelled.shortfalls.copy()
        floor = self.problem.min_samples_per_s
        for n in np.flatnonzero(np.isfinite(modelled.rates)):
            route = self.route(proposal.assignments[n], modelled.units[n])
            reached = self.reached(route)
            if reached < floor * (1 - 1e-9):
                rates[n], shortfalls[n] = math.inf, PENALTY + math.log(floor / reached)
            else:
                arrays = self.scorer.arrays
                hourly = float(arrays.price_per_hour[route.types] @ route.units) + self.problem.first_node_per_hour
                rates[n] = hourly / reached
                rates[n] += egress_rate(arrays, route.types, route.lasts, len(route.types))
        return modelled._replace(rates=rates, shortfalls=shortfalls)

    def route(self, assignment: Ints, units: Ints) -> Route:
        """Return one priced proposal as a route."""
        return self.scorer.route(assignment, units)

    def reached(self, route: Route) -> float:
        """Return the measured samples/s of a route, running it the first time."""
        key = route.key() + route.units.tobytes()
        if key not in self.seen:
            reached = self.measure(self.problem, to_stages(self.problem, route))
            if not 0 < reached < math.inf:
                raise PlanError(
                    f"measuring a plan gave {reached} samples/s", hint="the function must return a speed above zero"
                )
            self.seen[key] = reached
        return self.seen[key]
