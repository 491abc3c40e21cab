"""Every way to plan, by name. A new one is one new file and one line here."""

from __future__ import annotations

import math
from collections.abc import Callable

from dovetail.errors import PlanError, did_you_mean
from dovetail.planner.brute_force import cheapest_of_all
from dovetail.planner.demands import Demands
from dovetail.planner.exact import Clock
from dovetail.planner.impossible import no_plan
from dovetail.planner.plan import cheapest_plan
from dovetail.planner.result import refuse_timeless, to_plan
from dovetail.planner.tables import tables
from dovetail.spec import Plan, Problem


def brute_force_plan(problem: Problem, demands: Demands, *, clock: Clock) -> Plan:
    """Return the cheapest of all plans by pricing every one."""
    refuse_timeless(problem)
    started_s = clock()
    rate, path = cheapest_of_all(
        tables(problem, split_stages=demands.split_stages),
        min_samples_per_s=problem.min_samples_per_s,
        max_stages=demands.max_stages,
        split_stages=demands.split_stages,
    )
    if path is None or math.isinf(rate):
        raise no_plan(problem, demands, clock=clock, deadline_s=clock() + demands.time_limit_s)
    return to_plan(problem, path, demands, method="brute-force", rate_bound=rate, seconds=clock() - started_s)


METHODS: dict[str, Callable[..., Plan]] = {
    "exact": cheapest_plan,
    "brute-force": brute_force_plan,
}


def plan_with(method: str, problem: Problem, demands: Demands, *, clock: Clock) -> Plan:
    """Return the plan that a method makes, by the method's name."""
    if method not in METHODS:
        raise PlanError(f"`{method}` is not a method", hint=did_you_mean(method, METHODS))
    return METHODS[method](problem, demands, clock=clock)
