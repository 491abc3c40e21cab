"""Plans as the page shows them: a problem with other prices, limits and floors, and what each plan comes to."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from dovetail.cost import evaluate_plan, plan_memory
from dovetail.dashboard.asked import WhatIf
from dovetail.errors import PlanError, SpecError, did_you_mean
from dovetail.planner.demands import Demands
from dovetail.planner.methods import METHODS, Options, options_for, plan_with
from dovetail.planner.plan import fastest_plan, pareto_plans
from dovetail.spec import Plan, Problem
from dovetail.spec.files import struct_from

PLAN_S = 5.0
"""How long the exact planner searches for one plan before it gives the best so far."""
ROUNDS = 60
"""Of methods that search."""
POINTS = 24
"""Of the curve."""


def changed(problem: Problem, what_if: WhatIf) -> Problem:
    """Return the problem as it would be; refuse types that it does not have."""
    names = [resource.name for resource in problem.resources]
    for name in (*what_if.prices, *what_if.limits):
        if name not in names:
            raise SpecError(f"`{name[:60]}` is no type of the problem", hint=did_you_mean(name, names))
    resources = []
    for resource in problem.resources:
        table = {key: value for key, value in msgspec.to_builtins(resource).items() if value is not None}
        if resource.name in what_if.prices:
            table["price_per_hour"] = what_if.prices[resource.name]
        if resource.name in what_if.limits:
            table["limit"] = what_if.limits[resource.name]
        resources.append(struct_from(table, type(resource), file=resource.name))
    problem = msgspec.structs.replace(problem, resources=tuple(resources))
    if what_if.min_samples_per_s is None:
        return problem
    training = {**msgspec.to_builtins(problem.training), "min_samples_per_s": what_if.min_samples_per_s}
    return msgspec.structs.replace(problem, training=struct_from(training, type(problem.training), file="training"))


def plan_under(problem: Problem, what_if: WhatIf, *, method: str = "exact", rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the plan of a method for a problem that is otherwise, as the page shows it."""
    if method not in METHODS:
        raise PlanError(f"`{method[:60]}` is not a method", hint=did_you_mean(method, METHODS))
    other = changed(problem, what_if)
    demands = Demands(max_cost_per_hour=what_if.max_cost_per_hour, time_limit_s=PLAN_S)
    if what_if.max_cost_per_hour is not None:
        return plan_facts(other, fastest_plan(other, demands, clock=time.perf_counter))
    options = options_for(method, Options(rounds=rounds))
    return plan_facts(other, plan_with(method, other, demands, clock=time.perf_counter, options=options))


def curve_under(problem: Problem, what_if: WhatIf, *, points: int = POINTS) -> list[dict[str, Any]]:
    """Return plans from the cheapest to the fastest, none of which is both dearer and slower than another."""
    other = changed(problem, what_if).with_floor(0.0)
    demands = Demands(time_limit_s=PLAN_S)
    return [plan_facts(other, plan) for plan in pareto_plans(other, demands, points=points, clock=time.perf_counter)]


def problem_facts(problem: Problem) -> dict[str, Any]:
    """Return what the page shows of a problem."""
    training = problem.training
    return {
        "samples": training.samples,
        "epochs": training.epochs,
        "batch": training.batch,
        "min_samples_per_s": training.min_samples_per_s,
        "types": [
            {
                "name": resource.name,
                "kind": problem.kind_of(resource),
                "price_per_hour": resource.price_per_hour,
                "limit": resource.limit,
                "memory_bytes": resource.memory_bytes,
                "site": resource.site,
            }
            for resource in problem.resources
        ],
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "weight_bytes": layer.weight_bytes,
                "output_bytes": layer.output_bytes,
                "seconds": {name: spent.compute_s + spent.comm_s for name, spent in layer.on.items()},
            }
            for layer in problem.layers
        ],
        "methods": list(METHODS),
    }


def plan_facts(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return what the page shows of a plan: its figures, its stages and what each of them takes."""
    priced = evaluate_plan(problem, plan, split_stages=True)
    memory = plan_memory(problem, plan.stages)
    batch = plan.batch or problem.training.batch
    stages = []
    for stage, seconds, held in zip(plan.stages, priced.stage_seconds, memory, strict=True):
        resource = problem.resource(stage.resource)
        stages.append(
            {
                "resource": stage.resource,
                "first_layer": stage.first_layer,
                "last_layer": stage.last_layer,
                "units": stage.units,
                "seconds_per_batch": seconds,
                "samples_per_s": batch / seconds if seconds else None,
                "cost_per_hour": stage.units * resource.price_per_hour,
                "memory_bytes": held.total_bytes,
                "memory_limit_bytes": resource.memory_bytes,
                "row_hits": stage.row_hits,
            }
        )
    names = ["method", "samples_per_s", "cost_per_hour", "cost", "lower_bound", "optimal", "seconds", "egress_cost"]
    names += ["place", "servers", "readers", "cores"]
    return {
        **{name: getattr(plan, name) for name in names},
        "hours": priced.hours,
        "min_samples_per_s": problem.min_samples_per_s,
        "bottleneck": priced.bottleneck,
        "stages": stages,
        "parts": msgspec.to_builtins(plan.parts),
        "compared": msgspec.to_builtins(plan.compared),
    }
