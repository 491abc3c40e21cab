"""The three questions people ask: the cheapest plan, the fastest for the money, and the curve between the two."""

from __future__ import annotations

import math

import msgspec

from dovetail.cost.row_budget import settled
from dovetail.planner.cheapest_route import Route
from dovetail.planner.demands import Demands
from dovetail.planner.exact import CheapestSearch, Clock, Fastest, fastest_within
from dovetail.planner.hourly import HourlyPrices
from dovetail.planner.impossible import no_plan, too_dear
from dovetail.planner.layouts.compared import compared_with
from dovetail.planner.layouts.families import hourly_prices
from dovetail.planner.result import refuse_timeless, to_plan
from dovetail.planner.row_budgets.best import best_of_budgets
from dovetail.planner.stage_kernel import STEP
from dovetail.spec import Plan, Problem

PARETO_COST_RANGE = 10.0
"""The curve ends where plans cost this many times the cheapest."""


def cheapest_plan(problem: Problem, demands: Demands, *, clock: Clock) -> Plan:
    """Return the cheapest plan at the floor, with its certificate; raise NoPlanError where there is provably none."""

    def plan_one(given: Problem, within: Demands) -> Plan:
        return _cheapest_plan(given, within, clock=clock)

    if problem.beside is not None:  # then budgets are chosen with the layout
        plan = plan_one(problem, demands)
        return msgspec.structs.replace(plan, compared=compared_with(problem, demands, fastest=False, clock=clock))
    return best_of_budgets(problem, demands, plan_one, clock=clock)


def _cheapest_plan(problem: Problem, demands: Demands, *, clock: Clock) -> Plan:
    """Return the cheapest plan of a problem that leaves no budget open."""
    refuse_timeless(problem)
    started_s = clock()
    hourly = hourly_prices(problem, demands)
    deadline_s = started_s + demands.time_limit_s
    search = CheapestSearch(hourly, min_samples_per_s=problem.min_samples_per_s, clock=clock, deadline_s=deadline_s)
    found = search.run()
    if found is None:
        raise no_plan(problem, demands, clock=clock)
    seconds = clock() - started_s
    return to_plan(problem, found.route, demands, method="exact", rate_bound=found.rate_bound, seconds=seconds)


def fastest_plan(problem: Problem, demands: Demands, *, clock: Clock) -> Plan:
    """Return the fastest plan of at most `demands.max_cost_per_hour`, and among those as fast the cheapest.

    The cap is on what all units cost; bytes between sites are paid for by the byte, on top. Its `lower_bound` speaks of
    plans that are as fast: none of them costs less.
    """

    def plan_one(given: Problem, within: Demands) -> Plan:
        return _fastest_plan(given, within, clock=clock)

    if problem.beside is not None:
        plan = plan_one(problem, demands)
        return msgspec.structs.replace(plan, compared=compared_with(problem, demands, fastest=True, clock=clock))
    return best_of_budgets(problem, demands, plan_one, fastest=True, clock=clock)


def _fastest_plan(problem: Problem, demands: Demands, *, clock: Clock) -> Plan:
    """Return the fastest plan of a problem that leaves no budget open."""
    refuse_timeless(problem)
    cap = math.inf if demands.max_cost_per_hour is None else demands.max_cost_per_hour
    started_s = clock()
    of_units = hourly_prices(problem, demands, pays_egress=False)
    found = fastest_within(
        of_units,
        max_cost_per_hour=cap,
        at_least=problem.min_samples_per_s,
        clock=clock,
        deadline_s=started_s + demands.time_limit_s,
    )
    if found is None:
        if of_units.at(problem.min_samples_per_s).route is None:
            raise no_plan(problem, demands, clock=clock)
        raise too_dear(of_units, problem.min_samples_per_s, max_cost_per_hour=cap)
    hourly = hourly_prices(problem, demands) if problem.site_links else of_units
    route, rate_bound = _cheapest_as_fast(hourly, found, max_cost_per_hour=cap)
    return to_plan(problem, route, demands, method="exact", rate_bound=rate_bound, seconds=clock() - started_s)


def pareto_plans(problem: Problem, demands: Demands, *, points: int, clock: Clock) -> list[Plan]:
    """Return plans from the cheapest to the fastest, none of which is both dearer and slower than another.

    Each is the cheapest at its own pace, with its own certificate. The floors between are spread evenly in ratio.
    """
    first = cheapest_plan(problem, demands, clock=clock)
    plans = [first]
    dearest = _fastest_at_cost(problem, demands, first, clock=clock)
    step = (dearest / first.samples_per_s) ** (1 / max(points - 1, 1))
    for position in range(1, points):
        floor = min(first.samples_per_s * step**position, dearest)
        if floor <= plans[-1].samples_per_s * (1 + STEP):
            continue
        plans.append(cheapest_plan(problem.with_floor(floor), demands, clock=clock))
    return plans


def _fastest_at_cost(problem: Problem, demands: Demands, first: Plan, *, clock: Clock) -> float:
    """Return the pace at which the curve ends: the fastest there is, or where plans cost ten times the cheapest.

    Where budgets are open, those of the cheapest plan stand for all.
    """
    problem = settled(problem, first.stages)
    hourly = hourly_prices(problem, demands)
    of_units = hourly_prices(problem, demands, pays_egress=False) if hourly.has_egress else hourly
    deadline_s = clock() + demands.time_limit_s
    quickest = fastest_within(of_units, max_cost_per_hour=math.inf, at_least=0.0, clock=clock, deadline_s=deadline_s)
    low = first.samples_per_s
    high = low if quickest is None else max(low, quickest.samples_per_s)
    cap_rate = PARETO_COST_RANGE * first.cost / problem.training.total_samples * 3600 - hourly.least_egress_rate
    if hourly.at(high).lower_bound <= cap_rate * high:
        return high
    while high / low > 1.01 and clock() < deadline_s:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if hourly.at(middle).lower_bound <= cap_rate * middle else (low, middle)
    return low


def _cheapest_as_fast(hourly: HourlyPrices, found: Fastest, *, max_cost_per_hour: float) -> tuple[Route, float]:
    """Return the cheapest route that is as fast and within the cap, and the least USD per hour over samples/s of such.

    The bound is zero where nothing is proven.
    """
    answer = hourly.at(found.samples_per_s)
    bound = answer.lower_bound / found.samples_per_s + hourly.least_egress_rate
    routes = [found.route]
    if answer.route is not None and hourly.price(answer.route) <= max_cost_per_hour * (1 + STEP):
        routes.append(answer.route)
    return min(routes, key=hourly.rate), bound if found.proven and answer.exact else 0.0
