"""From a route of the kernels to a plan that users see, priced by the independent evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from dovetail.cost import PlanEvaluation, evaluate
from dovetail.cost.row_budget import hits_of
from dovetail.errors import PlanError
from dovetail.planner.cheapest_route import Route
from dovetail.planner.demands import Demands
from dovetail.planner.exact import OPTIMAL_WITHIN
from dovetail.spec import Plan, Problem, Stage


def to_stages(problem: Problem, route: Route) -> tuple[Stage, ...]:
    """Return a route as stages, with names for numbers."""
    stages = []
    first = 0
    for t, last, units in zip(route.types.tolist(), route.lasts.tolist(), route.units.tolist(), strict=True):
        layers, resource = problem.layers[first : last + 1], problem.resources[t].name
        names = tuple(layer.name for layer in layers)
        stages.append(
            Stage(
                resource=resource,
                first_layer=first,
                last_layer=last,
                units=units,
                layers=names,
                row_budgets=route.row_budgets,
            )
        )
        first = last + 1
    return tuple(stages)


def to_plan(
    problem: Problem, route: Route, demands: Demands, *, method: str, rate_bound: float, seconds: float
) -> Plan:
    """Return the plan of a route; `rate_bound` is the least USD per hour over samples/s that any plan can have.

    The evaluator prices it from the problem alone. A plan that misses a demand by its reckoning never gets out.
    """
    stages, priced = to_stages(problem, route), priced_route(problem, route, demands)
    if priced.violations:
        raise AssertionError(f"{method} made an illegal plan: {priced.violations}")
    is_plain = not problem.machines and problem.beside is None
    is_whole = any(part.part == "whole" for part in priced.parts)
    lower_bound = min(rate_bound * problem.training.total_samples / 3600, priced.cost)
    return Plan(
        method=method,
        stages=tuple(
            msgspec.structs.replace(
                stage,
                seconds_per_batch=stage_s,
                kind=problem.resource(stage.resource).kind,
                row_hits=hits_of(problem, stage) or None,
            )
            for stage, stage_s in zip(stages, priced.stage_seconds, strict=True)
        ),
        samples_per_s=priced.samples_per_s,
        cost_per_hour=priced.cost_per_hour,
        cost=priced.cost,
        lower_bound=lower_bound,
        optimal=priced.cost - lower_bound <= OPTIMAL_WITHIN * priced.cost,
        seconds=seconds,
        batch=problem.training.batch,
        hours=priced.hours,
        egress_cost=priced.egress_cost if priced.egress_bytes > 0 else None,
        egress_bytes=priced.egress_bytes if priced.egress_bytes > 0 else None,
        first_node_per_hour=problem.first_node_per_hour or None,
        problem=problem.digest(),
        place=route.place,
        servers=route.servers if route.place == "servers" else None,
        readers=None if route.place is None or is_whole else route.readers,
        cores=None if is_plain else priced.cores,
        parts=priced.parts,
    )


def priced_route(problem: Problem, route: Route, demands: Demands) -> PlanEvaluation:
    """Return what a route costs by the evaluator's reckoning."""
    return evaluate(
        problem,
        to_stages(problem, route),
        split_stages=demands.split_stages,
        place=route.place,
        servers=route.servers,
        readers=route.readers,
    )


def refuse_timeless(problem: Problem) -> None:
    """Refuse a problem whose layers all take no time somewhere: its plans would be infinitely fast and free."""
    if all(any(time.compute_s == time.comm_s == 0 for time in layer.on.values()) for layer in problem.layers):
        raise PlanError(
            "every layer takes 0 seconds on some type, so a plan would be infinitely fast",
            hint="give at least one layer a compute_s or comm_s above zero on each of its types",
        )


def round_down(number: float, *, figures: int = 6) -> float:
    """Return a number lowered to a few significant figures: a floor that still can be met."""
    return _rounded(number, figures, math.floor)


def round_up(number: float, *, figures: int = 6) -> float:
    """Return a number raised to a few significant figures: a cap that leaves room enough."""
    return _rounded(number, figures, math.ceil)


def _rounded(number: float, figures: int, rounding: Callable[[float], int]) -> float:
    """Return a number rounded one way at its last significant figure."""
    if number == 0 or math.isinf(number):
        return number
    scale = 10.0 ** (figures - 1 - math.floor(math.log10(abs(number))))
    return rounding(number * scale) / scale
