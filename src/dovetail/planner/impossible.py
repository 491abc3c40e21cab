"""Why there is no plan, and what would let there be one: every remedy with the value that would do."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from dovetail.cost import plan_memory
from dovetail.errors import NoPlanError
from dovetail.planner.arrays import ProblemArrays, as_arrays
from dovetail.planner.demands import Demands
from dovetail.planner.exact import Clock, fastest_within
from dovetail.planner.hourly import Hourly, HourlyPrices
from dovetail.planner.layouts.families import is_plain
from dovetail.planner.layouts.impossible import no_layout
from dovetail.planner.result import round_down, round_up, to_stages
from dovetail.spec import Problem
from dovetail.spec.resource import UNITS_WITHOUT_LIMIT
from dovetail.units import format_bytes, format_plain

REMEDIES_WITHIN_S = 10.0
"""How long to look for ways out, at most; those found until then are named."""


def no_plan(problem: Problem, demands: Demands, *, clock: Clock) -> NoPlanError:
    """Return the error for a problem proven to have no plan at its floor: what is wrong, and the ways out."""
    if not is_plain(problem):
        return no_layout(problem, demands, clock=clock)
    deadline_s = clock() + min(REMEDIES_WITHIN_S, max(demands.time_limit_s, 1.0))
    arrays = as_arrays(problem, split_stages=demands.split_stages).without_egress()  # speed is asked for, not money
    floor = problem.min_samples_per_s
    reachable = fastest_within(
        Hourly(arrays, max_stages=demands.max_stages),
        max_cost_per_hour=math.inf,
        at_least=0.0,
        clock=clock,
        deadline_s=deadline_s,
    )
    remedies = []
    if reachable is not None and floor > 0:
        reached = reachable.samples_per_s
        fastest = "the fastest" if reachable.proven else "the fastest found"
        message = (
            f"no plan reaches min_samples_per_s = {format_plain(floor)}: {fastest} reaches {format_plain(reached)}"
        )
        remedies.append(f"lower `min_samples_per_s` to {format_plain(round_down(reached))}")
    else:
        message = "no plan exists, at any speed: limits, memory, links or the stages allowed leave no way"
    for remedy in (_raise_limits, _more_stages, _split_stages, _more_memory, _more_links):
        if clock() < deadline_s:
            remedies += remedy(problem, arrays, demands)
    if not remedies:
        remedies = ["let layers run on more types, or use faster ones"]
    return NoPlanError(message, hint=", or ".join(remedies))


def too_dear(hourly: HourlyPrices, min_samples_per_s: float, *, max_cost_per_hour: float) -> NoPlanError:
    """Return the error for a cap below what the cheapest plan at the floor costs per hour."""
    answer = hourly.at(min_samples_per_s)
    least = answer.lower_bound if answer.route is None else hourly.price(answer.route)
    pace = f" at {format_plain(min_samples_per_s)} samples/s" if min_samples_per_s > 0 else ""
    return NoPlanError(
        f"no plan{pace} costs at most {format_plain(max_cost_per_hour)} USD per hour: "
        f"the cheapest costs {format_plain(least)}",
        hint=f"raise --max-cost-per-hour to {format_plain(round_up(least))}"
        + (", or ask for less speed with --min-samples-per-s" if pace else ""),
    )


def _raise_limits(problem: Problem, arrays: ProblemArrays, demands: Demands) -> list[str]:
    """Return the limits that would do when raised: each by itself, or else several together."""
    return _raise_one_limit(problem, arrays, demands) or _raise_limits_together(problem, arrays, demands)


def _raise_one_limit(problem: Problem, arrays: ProblemArrays, demands: Demands) -> list[str]:
    """Return the types of which more units alone would do, each with the least number that does."""
    remedies = []
    for t, resource in enumerate(problem.resources):
        if resource.limit is None:
            continue
        # The least units of one type, whatever the rest costs: count that type alone as the price.
        limit = arrays.limit.copy()
        limit[t] = UNITS_WITHOUT_LIMIT
        price = np.zeros(arrays.num_types)
        price[t] = 1.0
        counting = Hourly(arrays._replace(limit=limit, price_per_hour=price), max_stages=demands.max_stages)
        answer = counting.at(problem.min_samples_per_s)
        if answer.route is not None:
            needed = int(answer.route.used(arrays.num_types)[t])
            if needed > resource.limit:
                remedies.append(f"raise `limit` of `{resource.name}` from {resource.limit} to {needed}")
    return remedies


def _raise_limits_together(problem: Problem, arrays: ProblemArrays, demands: Demands) -> list[str]:
    """Return the limits that the cheapest plan without any would need raised together."""
    unlimited = arrays._replace(limit=np.full_like(arrays.limit, UNITS_WITHOUT_LIMIT))
    answer = Hourly(unlimited, max_stages=demands.max_stages).at(problem.min_samples_per_s)
    if answer.route is None:
        return []
    used = answer.route.used(arrays.num_types)
    raised = [
        f"`limit` of `{resource.name}` from {resource.limit} to {used[t]}"
        for t, resource in enumerate(problem.resources)
        if used[t] > arrays.limit[t]
    ]
    return ["raise together " + " and ".join(raised)] if raised else []


def _more_stages(problem: Problem, arrays: ProblemArrays, demands: Demands) -> list[str]:
    """Return the least number of stages that would do, where stages are what is missing."""
    if demands.max_stages is None:
        return []
    for stages in range(demands.max_stages + 1, arrays.num_layers + 1):
        if Hourly(arrays, max_stages=stages).at(problem.min_samples_per_s).route is not None:
            return [f"raise --max-stages from {demands.max_stages} to {stages}"]
    return []


def _split_stages(problem: Problem, _: ProblemArrays, demands: Demands) -> list[str]:
    """Say so where cuts inside one type would do."""
    if demands.split_stages:
        return []
    split = as_arrays(problem, split_stages=True)
    if Hourly(split, max_stages=demands.max_stages).at(problem.min_samples_per_s).route is None:
        return []
    return ["allow cuts inside one type with --split-stages"]


def _more_memory(problem: Problem, arrays: ProblemArrays, demands: Demands) -> list[str]:
    """Return how much memory a unit would need where memory is what is missing, by the cheapest plan without it."""
    if np.isinf(arrays.memory_bytes).all():
        return []
    roomy = arrays._replace(memory_bytes=np.full_like(arrays.memory_bytes, np.inf))
    route = Hourly(roomy, max_stages=demands.max_stages).at(problem.min_samples_per_s).route
    if route is None:
        return []
    stages = to_stages(problem, route)
    needed: dict[str, float] = {}
    for stage, memory in zip(stages, plan_memory(problem, stages), strict=True):
        needed[stage.resource] = max(needed.get(stage.resource, 0.0), memory.total_bytes)
    return [
        f"rent `{name}` with at least {format_bytes(round_up(needed[name], figures=3))} a unit "
        f"instead of {format_bytes(room_bytes)}"
        for name in needed
        if (room_bytes := problem.resource(name).memory_bytes) is not None and needed[name] > room_bytes
    ]


def _more_links(problem: Problem, _: ProblemArrays, demands: Demands) -> list[str]:
    """Say so where links are what is missing: with free cuts there would be a plan."""
    if not problem.links and not problem.site_links:
        return []
    without_links = msgspec.structs.replace(problem, links=(), site_links=())
    free = as_arrays(without_links, split_stages=demands.split_stages)
    if Hourly(free, max_stages=demands.max_stages).at(problem.min_samples_per_s).route is not None:
        tables = " or ".join(
            table for table, given in (("[[link]]", problem.links), ("[[site_link]]", problem.site_links)) if given
        )
        return [f"add or speed up a {tables}: if cuts cost nothing there would be a plan"]
    return []
