"""How the memory that a stage leaves free is shared among its embeddings' rows, and how little of it would do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from dovetail.cost import evaluate
from dovetail.cost.memory import stage_memory
from dovetail.cost.plan import stage_times
from dovetail.cost.row_budget import with_budget
from dovetail.planner.demands import Demands
from dovetail.spec import Layer, Plan, Problem, RowCacheCurve, Stage

LEAST_BYTES = 1.0
"""Of a budget where nothing else is said: none has no rows at all."""
Budgets = Mapping[str, float]


def room_for_rows(problem: Problem, stage: Stage, names: Sequence[str]) -> float:
    """Return the bytes that a unit of a stage has left for the rows of some embeddings; below zero where it is full."""
    room = problem.resource(stage.resource).memory_bytes
    if room is None:
        return math.inf
    layers = problem.layers[stage.first_layer : stage.last_layer + 1]
    least = {layer.name: least_of(_cache(layer, stage.resource)) for layer in layers if layer.name in names}
    layers = tuple(
        with_budget(layer, stage.resource, least[layer.name]) if layer.name in least else layer for layer in layers
    )
    return room - stage_memory(layers, units=stage.units, resource=stage.resource).total_bytes + sum(least.values())


def least_of(cache: RowCacheCurve) -> float:
    """Return the smallest budget there is."""
    return max(LEAST_BYTES, cache.least_bytes)


def filled(problem: Problem, stage: Stage, least: Budgets, room: float, *, within_s: float = -math.inf) -> Budgets:
    """Return budgets of at least `least` for the embeddings named there, and `room` bytes in all at most.

    Memory goes to where a byte saves most, as long as rows that are missed take the stage longer than `within_s`.
    """
    layers = problem.layers[stage.first_layer : stage.last_layer + 1]
    caches = {layer.name: _cache(layer, stage.resource) for layer in layers if layer.name in least}
    budgets = dict(least)
    left = room - sum(budgets.values())
    while left > 0:
        spare_s = _missed_s(caches, budgets) - within_s * stage.units
        ways = {name: _steepest(cache, budgets[name]) for name, cache in caches.items()}
        name, worth = max(ways.items(), key=lambda way: way[1])
        if worth <= 0 or spare_s <= 0:
            break
        point = next(held for held, _ in caches[name].hits if held > budgets[name])
        step = min(point - budgets[name], left)
        gain = caches[name].hit_ratio(budgets[name] + step) - caches[name].hit_ratio(budgets[name])
        saved_s = caches[name].miss_s * gain
        if saved_s > spare_s:
            step *= spare_s / saved_s
        if budgets[name] + step <= budgets[name]:
            break
        budgets[name] += step
        left -= step
    return budgets


def _steepest(cache: RowCacheCurve, held: float) -> float:
    """Return the seconds that a byte saves on the way to the point that is worth most a byte."""
    now = cache.hit_ratio(held)
    ways = [cache.miss_s * (part - now) / (point - held) for point, part in cache.hits if point > held]
    return max(ways, default=0.0)


def _missed_s(caches: Mapping[str, RowCacheCurve], budgets: Budgets) -> float:
    return sum(cache.miss_s * (1 - cache.hit_ratio(budgets[name])) for name, cache in caches.items())


def _cache(layer: Layer, resource: str) -> RowCacheCurve:
    cache = layer.on[resource].cache
    if cache is None:
        raise AssertionError(f"`{layer.name}` has no curve on `{resource}`")
    return cache


def priced(problem: Problem, plan: Plan, stages: Sequence[Stage], demands: Demands) -> Plan | None:
    """Return a plan with other budgets, by the evaluator's reckoning; None where it misses a demand."""
    found = evaluate(problem, stages, split_stages=demands.split_stages)
    if found.violations:
        return None
    return msgspec.structs.replace(
        plan,
        stages=tuple(
            msgspec.structs.replace(stage, seconds_per_batch=seconds)
            for stage, seconds in zip(stages, found.stage_seconds, strict=True)
        ),
        samples_per_s=found.samples_per_s,
        cost_per_hour=found.cost_per_hour,
        cost=found.cost,
        hours=found.hours,
        egress_cost=found.egress_cost if found.egress_bytes > 0 else None,
        egress_bytes=found.egress_bytes if found.egress_bytes > 0 else None,
        problem=problem.digest(),
    )


def with_budgets(stage: Stage, budgets: Budgets | None) -> Stage:
    """Return a stage whose embeddings keep so much."""
    return msgspec.structs.replace(stage, row_budgets=dict(budgets) if budgets else None)


def trimmed(problem: Problem, plan: Plan, demands: Demands) -> Plan:
    """Return the plan with the least memory for rows with which it is as fast."""
    slowest_s = problem.training.batch / plan.samples_per_s
    stages = []
    for number, stage in enumerate(plan.stages):
        budgets: Budgets | None = stage.row_budgets
        if budgets:
            layers = problem.layers[stage.first_layer : stage.last_layer + 1]
            caches = {each.name: _cache(each, stage.resource) for each in layers if each.name in budgets}
            missed_s = _missed_s(caches, budgets)
            times = stage_times(problem, plan.stages, number)
            rest_s = times.comm_s + times.cut_s - missed_s / stage.units
            least = {name: least_of(cache) for name, cache in caches.items()}
            budgets = filled(problem, stage, least, sum(budgets.values()), within_s=slowest_s - rest_s)
        stages.append(with_budgets(stage, budgets))
    return priced(problem, plan, stages, demands) or plan
