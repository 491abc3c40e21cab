"""How much memory an embedding's rows are given: every point of its curve is planned with, and the best plan kept.

A problem whose embeddings may keep only some rows on a type is many problems without that choice. On each type all such
embeddings take the same point of their curves, or keep all of their rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec

from dovetail.cost.row_budget import budgets_of, with_budget
from dovetail.errors import NoPlanError
from dovetail.planner.demands import Demands
from dovetail.planner.exact import OPTIMAL_WITHIN, Clock
from dovetail.spec import Layer, Plan, Problem

PlanOne = Callable[[Problem, Demands], Plan]
Better = Callable[[Plan], tuple[float, ...]]


def cheapest(plan: Plan) -> tuple[float, ...]:
    """Order plans by cost."""
    return (plan.cost,)


def fastest(plan: Plan) -> tuple[float, ...]:
    """Order plans by speed, and those as fast by cost."""
    return (-plan.samples_per_s, plan.cost)


def over_budgets(problem: Problem, demands: Demands, plan_one: PlanOne, order: Better, *, clock: Clock) -> Plan:
    """Return the first by `order` of the plans for all budgets; raise NoPlanError where there is none with any.

    Where time runs out before all were tried, nothing is proven of those left.
    """
    if not _types_with_choice(problem):
        return plan_one(problem, demands)
    started_s, count = clock(), _num_choices(problem)
    best: Plan | None = None
    bound, refused = math.inf, None
    for tried, settled in enumerate(_choices(problem)):
        left_s = started_s + demands.time_limit_s - clock()
        if left_s <= 0 and best is not None:
            bound = 0.0
            break
        try:
            plan = plan_one(settled, replace(demands, time_limit_s=max(0.0, left_s / (count - tried))))
        except NoPlanError as error:
            refused = error
            continue
        bound = min(bound, plan.lower_bound)
        plan = _with_budgets(plan, settled)
        if best is None or order(plan) < order(best):
            best = plan
    if best is None:
        raise refused or NoPlanError("no plan exists", hint="raise the limits")
    bound = min(bound, best.cost)
    return msgspec.structs.replace(
        best,
        problem=problem.digest(),
        lower_bound=bound,
        optimal=best.cost - bound <= OPTIMAL_WITHIN * best.cost,
        seconds=clock() - started_s,
    )


def _types_with_choice(problem: Problem) -> list[str]:
    """Return the types on which some embedding may keep only some rows."""
    names = [resource.name for resource in problem.resources]
    return [name for name in names if any(_has_choice(layer, name) for layer in problem.layers)]


def _has_choice(layer: Layer, resource: str) -> bool:
    return resource in layer.on and layer.on[resource].cache is not None


def _points(problem: Problem, resource: str) -> range:
    """Return the numbers of the points of a type's longest curve, -1 for keeping all rows."""
    caches = [layer.on[resource].cache for layer in problem.layers if _has_choice(layer, resource)]
    return range(-1, max(len(cache.hits) for cache in caches if cache is not None))


def _num_choices(problem: Problem) -> int:
    return math.prod(len(_points(problem, name)) for name in _types_with_choice(problem))


def _choices(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with every choice of budgets."""
    types = _types_with_choice(problem)
    for points in itertools.product(*(_points(problem, name) for name in types)):
        layers = list(problem.layers)
        for (position, layer), (name, point) in itertools.product(
            enumerate(problem.layers), zip(types, points, strict=True)
        ):
            cache = layer.on[name].cache if name in layer.on else None
            if cache is None:
                continue
            if point >= 0:
                held_bytes, _ = cache.hits[min(point, len(cache.hits) - 1)]
                layers[position] = with_budget(layers[position], name, held_bytes)
            else:
                whole = msgspec.structs.replace(layer.on[name], cache=None)
                layers[position] = msgspec.structs.replace(layers[position], on={**layers[position].on, name: whole})
        yield msgspec.structs.replace(problem, layers=tuple(layers))


def _with_budgets(plan: Plan, settled: Problem) -> Plan:
    """Return a plan whose stages say what their embeddings keep."""
    stages = [
        msgspec.structs.replace(
            stage,
            row_budgets=budgets_of(settled.layers[stage.first_layer : stage.last_layer + 1], stage.resource),
        )
        for stage in plan.stages
    ]
    return msgspec.structs.replace(plan, stages=tuple(stages))
