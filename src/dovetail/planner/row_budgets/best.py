"""How much memory an embedding's rows are given, by methods that prove nothing: every point of its curve is tried.

A problem whose embeddings may keep only some rows on a type is many problems without that choice. On each type all such
embeddings take the same point of their curves, or keep all of their rows; in the end each stage fills its memory with
rows as far as that makes it faster. Methods that prove their plans look at all budgets (`BudgetSearch`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec

from dovetail.cost.row_budget import budgets_of, hits_of, with_budget
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.demands import Demands
from dovetail.planner.exact import OPTIMAL_WITHIN, Clock
from dovetail.planner.row_budgets.fill import filled, least_of, priced, room_for_rows, trimmed, with_budgets
from dovetail.planner.row_budgets.search import (
    SAME_SPEED,
    BudgetSearch,
    knobs_by_place,
    knobs_by_type,
    one_knob_loses_nothing,
    places_with_choice,
)
from dovetail.spec import Layer, Plan, Problem

PlanOne = Callable[[Problem, Demands], Plan]
MOST_QUESTIONS = 300
"""Of the proof where several embeddings share a type's memory; each is a plan."""
NO_PLAN = NoPlanError(
    "no plan meets the demands, whatever part of embeddings' rows is kept in memory",
    hint="raise `memory_bytes` or `limit` of a type, or lower `min_samples_per_s`",
)


def best_of_budgets(
    problem: Problem, demands: Demands, plan_one: PlanOne, *, fastest: bool = False, clock: Clock
) -> Plan:
    """Return the cheapest plan, or the fastest, over all budgets; `plan_one` proves what it finds for fixed ones.

    Several embeddings on one type get memory where a byte saves most. Where other budgets could be better all the same,
    that they are not is proven as far as it goes with few questions.
    """
    if not places_with_choice(problem):
        return plan_one(problem, demands)
    started_s = clock()
    search = BudgetSearch(
        problem, demands, plan_one, fastest=fastest, clock=clock, deadline_s=started_s + demands.time_limit_s
    )
    by_type = knobs_by_type(problem)
    try:
        found = search.run(by_type)
        if not all(one_knob_loses_nothing(knob, demands) for knob in by_type):
            found = search.run(knobs_by_place(problem), best=found.best, most_questions=MOST_QUESTIONS)
    except NoPlanError as error:
        raise _refused(problem, demands, plan_one, error) from None
    if found.best is None:
        raise _refused(problem, demands, plan_one, NO_PLAN)
    best, bounds = trimmed(problem, found.best, demands), list(found.bounds)
    if fastest:
        # One without a bound of its own (time ran out) excludes nothing, however slow it is.
        least = best.samples_per_s * (1 - SAME_SPEED)
        bounds = [plan for plan in bounds if plan.lower_bound <= 0 or plan.samples_per_s > least]
    bound = min([best.cost, *(plan.lower_bound for plan in bounds)])
    if fastest and any(plan.samples_per_s > best.samples_per_s * (1 + OPTIMAL_WITHIN) for plan in bounds):
        bound = 0.0  # something faster is not excluded
    return _told(problem, best, bound, clock() - started_s)


def _refused(problem: Problem, demands: Demands, plan_one: PlanOne, error: NoPlanError) -> NoPlanError:
    """Return why there is no plan, by the largest budgets that were refused: that can be mended."""
    for settled in _choices(problem):
        try:
            plan_one(settled, demands)
        except NoPlanError as refused:
            error = refused
    return error


def _told(problem: Problem, plan: Plan, bound: float, seconds: float) -> Plan:
    """Return a plan with what is proven of it."""
    return msgspec.structs.replace(
        plan,
        stages=tuple(msgspec.structs.replace(stage, row_hits=hits_of(problem, stage) or None) for stage in plan.stages),
        problem=problem.digest(),
        lower_bound=min(bound, plan.cost),
        optimal=plan.cost - bound <= OPTIMAL_WITHIN * plan.cost,
        seconds=seconds,
    )


def over_budgets(
    problem: Problem, demands: Demands, plan_one: PlanOne, lower_bound: Callable[[], float], *, clock: Clock
) -> Plan:
    """Return the cheapest of the plans for all points of the curves; `lower_bound` is of all plans there are.

    Raises PlanError where there is none with any.
    """
    if not places_with_choice(problem):
        return plan_one(problem, demands)
    started_s, count = clock(), _num_choices(problem)
    best: Plan | None = None
    refused: PlanError | None = None
    for tried, settled in enumerate(_choices(problem)):
        left_s = started_s + demands.time_limit_s - clock()
        if left_s <= 0 and best is not None:
            break
        try:
            plan = plan_one(settled, replace(demands, time_limit_s=max(0.0, left_s / (count - tried))))
        except PlanError as error:  # of this method, or of these budgets: others may do
            refused = error
            continue
        plan = _filled(problem, _with_budgets(plan, settled), demands)
        if best is None or plan.cost < best.cost:
            best = plan
    if best is None:
        raise refused or NO_PLAN
    best, seconds = trimmed(problem, best, demands), clock() - started_s
    return _told(problem, best, lower_bound(), seconds)


def _filled(problem: Problem, plan: Plan, demands: Demands) -> Plan:
    """Return a plan whose stages have as many rows in memory as fit."""
    stages = []
    for stage in plan.stages:
        least = stage.row_budgets or {}
        room = room_for_rows(problem, stage, list(least))
        stages.append(with_budgets(stage, filled(problem, stage, least, room) if least else None))
    return priced(problem, plan, stages, demands) or plan


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
                layers[position] = with_budget(layers[position], name, max(held_bytes, least_of(cache)))
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
