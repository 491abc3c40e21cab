"""How far a plan depends on times that were estimated: the cheapest plan again, with them longer and shorter.

Every estimated time is multiplied, and divided, by 1 + its error at once. What the cheapest plan costs then, and
whether it still has the same stages, is what measuring could change.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from dovetail.errors import PlanError
from dovetail.planner.demands import Demands
from dovetail.planner.plan import cheapest_plan
from dovetail.spec import Layer, Plan, Problem

DEFAULT_ERROR = 0.5
"""Of an estimate that does not say how good it is."""


class Dependence(Struct, frozen=True, kw_only=True):
    """What estimates decide."""

    types: tuple[str, ...]
    """Whose times are estimated."""
    error: float
    """The largest of their relative errors."""
    cost_if_slower: float | None
    """Of the cheapest plan then; None where there is none."""
    cost_if_faster: float | None
    changes: bool
    """Whether either has other stages than the plan, or there is none."""


def dependence(problem: Problem, plan: Plan, demands: Demands, *, clock: Callable[[], float]) -> Dependence | None:
    """Return how far a plan depends on estimates, or None where all times are measured or given."""
    estimated = [
        (name, DEFAULT_ERROR if time.error is None else time.error)
        for layer in problem.layers
        for name, time in layer.on.items()
        if time.source == "estimated"
    ]
    if not estimated:
        return None
    slower, faster = (_planned(_scaled(problem, slow=slow), demands, clock) for slow in (True, False))
    return Dependence(
        types=tuple(dict.fromkeys(name for name, _ in estimated)),
        error=max(error for _, error in estimated),
        cost_if_slower=None if slower is None else slower.cost,
        cost_if_faster=None if faster is None else faster.cost,
        changes=any(other is None or _route(other) != _route(plan) for other in (slower, faster)),
    )


def _planned(problem: Problem, demands: Demands, clock: Callable[[], float]) -> Plan | None:
    """Return the cheapest plan, where there is one."""
    try:
        return cheapest_plan(problem, demands, clock=clock)
    except PlanError:
        return None


def _route(plan: Plan) -> list[tuple[str, int, int]]:
    """Return which layers go where."""
    return [(stage.resource, stage.first_layer, stage.last_layer) for stage in plan.stages]


def _scaled(problem: Problem, *, slow: bool) -> Problem:
    """Return the problem with every estimated time off by its error, all in one direction."""
    return msgspec.structs.replace(problem, layers=tuple(_scaled_layer(layer, slow=slow) for layer in problem.layers))


def _scaled_layer(layer: Layer, *, slow: bool) -> Layer:
    """Return a layer with its estimated times longer, or shorter."""
    on = {}
    for name, time in layer.on.items():
        if time.source == "estimated":
            factor = 1.0 + (DEFAULT_ERROR if time.error is None else time.error)
            factor = factor if slow else 1.0 / factor
            cache = time.cache
            if cache is not None:
                cache = msgspec.structs.replace(cache, miss_s=cache.miss_s * factor)
            on[name] = msgspec.structs.replace(time, compute_s=time.compute_s * factor, cache=cache)
        else:
            on[name] = time
    return msgspec.structs.replace(layer, on=on)
