"""The plain layouts that are always compared with the chosen one: one process, and the whole model on every unit."""

from __future__ import annotations

import math

import msgspec

from dovetail.planner.cheapest_route import Route
from dovetail.planner.demands import Demands
from dovetail.planner.exact import CheapestSearch, Clock, fastest_within
from dovetail.planner.hourly import HourlyPrices
from dovetail.planner.layouts.families import Families, Kind
from dovetail.planner.layouts.first_node import WithFirstNode
from dovetail.planner.result import priced_route
from dovetail.spec import Compared, Problem

NAMES: dict[Kind, str] = {"process": "one process", "workers": "plain data parallel"}
WITHIN_S = 1.0
"""How long each may be searched for; the best by then is compared."""


def compared_with(problem: Problem, demands: Demands, *, fastest: bool, clock: Clock) -> tuple[Compared, ...]:
    """Return the best of each plain layout, of types of kind cpu and of others, by the question that was asked.

    Where none meets what is asked for, it is the fastest there is: its speed and price say what it misses.
    """
    found = []
    cpu_types = problem.cpu_types
    for kind, name in NAMES.items():
        for is_cpu in (True, False):
            best: Compared | None = None
            for resource in problem.resources:
                if (resource.name in cpu_types) != is_cpu:
                    continue
                alone = only_on(problem, [resource.name] * len(problem.layers))
                if alone is None:
                    continue
                route = _best(alone, demands, kind, fastest=fastest, clock=clock)
                if route is None:
                    continue
                priced = priced_route(alone, route, demands)
                layout = Compared(
                    layout=f"{name} on {resource.name}",
                    samples_per_s=priced.samples_per_s,
                    cost_per_hour=priced.cost_per_hour,
                    cost=priced.cost,
                )
                if best is None or _is_better(layout, best, problem, fastest=fastest):
                    best = layout
            if best is not None:
                found.append(best)
    return tuple(found)


def only_on(problem: Problem, types: list[str]) -> Problem | None:
    """Return the problem with each layer on one type alone; None where it cannot be there."""
    if any(
        name not in layer.on or problem.resource(name).units_to_be_had == 0
        for name, layer in zip(types, problem.layers, strict=True)
    ):
        return None
    layers = [
        msgspec.structs.replace(layer, on={name: layer.on[name]})
        for name, layer in zip(types, problem.layers, strict=True)
    ]
    return msgspec.structs.replace(problem, layers=tuple(layers))


def _best(problem: Problem, demands: Demands, kind: Kind, *, fastest: bool, clock: Clock) -> Route | None:
    """Return the best layout of a kind, or the fastest where none meets what is asked for."""
    prices: HourlyPrices = Families(problem, max_stages=1, split_stages=demands.split_stages, kinds=(kind,))
    if problem.first_node_per_hour:
        prices = WithFirstNode(prices, problem.first_node_per_hour)
    floor, deadline_s = problem.min_samples_per_s, clock() + WITHIN_S
    cap = math.inf if demands.max_cost_per_hour is None else demands.max_cost_per_hour
    if fastest:
        quick = fastest_within(prices, max_cost_per_hour=cap, at_least=floor, clock=clock, deadline_s=deadline_s)
        if quick is not None:
            return quick.route
    elif prices.at(floor).route is not None:
        search = CheapestSearch(prices, min_samples_per_s=floor, clock=clock, deadline_s=deadline_s)
        cheapest = search.run()
        return None if cheapest is None else cheapest.route
    quick = fastest_within(prices, max_cost_per_hour=math.inf, at_least=0.0, clock=clock, deadline_s=deadline_s)
    return None if quick is None else quick.route


def _is_better(one: Compared, other: Compared, problem: Problem, *, fastest: bool) -> bool:
    """Say whether a layout answers the question better than another."""
    floor = problem.min_samples_per_s * (1 - 1e-9)
    if fastest or min(one.samples_per_s, other.samples_per_s) < floor:
        return one.samples_per_s > other.samples_per_s
    return one.cost < other.cost
