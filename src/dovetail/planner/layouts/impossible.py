"""Why machines have no room for any layout, or for one that is fast enough, and what would let there be one."""

from __future__ import annotations

import math

import msgspec

from dovetail.cost import evaluate
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.demands import Demands
from dovetail.planner.exact import Clock, fastest_within
from dovetail.planner.layouts.families import hourly_prices
from dovetail.planner.result import round_down
from dovetail.spec import Place, Problem, Stage
from dovetail.units import format_bytes, format_plain

MOST_CORES = 1 << 14
"""Machines with more are not thought of."""
MOST_REASONS = 4
PLACES: tuple[Place, ...] = ("local", "servers", "sharded")


def no_layout(problem: Problem, demands: Demands, *, clock: Clock) -> NoPlanError:
    """Return the error for a problem proven to have no layout at its floor: what is wrong, and the ways out."""
    deadline_s = clock() + max(1.0, min(demands.time_limit_s, 5.0))
    prices = hourly_prices(problem, demands, pays_egress=False)
    quick = fastest_within(prices, max_cost_per_hour=math.inf, at_least=0.0, clock=clock, deadline_s=deadline_s)
    floor = problem.min_samples_per_s
    remedies = []
    if quick is not None:
        fastest = "the fastest" if quick.proven else "the fastest found"
        message = (
            f"no plan reaches min_samples_per_s = {format_plain(floor)}: {fastest} reaches "
            f"{format_plain(quick.samples_per_s)}"
        )
        remedies.append(f"lower `min_samples_per_s` to {format_plain(round_down(quick.samples_per_s))}")
    else:
        reasons = _reasons(problem)
        message = "no layout fits, at any speed" + (": " + "; ".join(reasons) if reasons else "")
    remedies += _more_cores(problem, demands)
    if problem.beside is not None and set(problem.beside.places) < set(PLACES):
        allowed = ", ".join(problem.beside.places)
        remedies.append(f"allow more `places` of rows than {allowed}, or measure such layouts: [[beside.whole]]")
    if not remedies:
        remedies = ["give machines more `memory_bytes`, `cores` or `units`, or let layers run on more types"]
    return NoPlanError(message, hint=", or ".join(remedies))


def _reasons(problem: Problem) -> list[str]:
    """Return what the smallest layouts of one type lack, as the evaluator says."""
    beside, problem = problem.beside, problem.with_floor(0.0)
    readers = 1 if beside is not None and beside.read_core_s > 0 else 0
    places: list[tuple[Place | None, str, int]] = [(None, "stages", 0)]
    if beside is not None:
        plain: list[tuple[Place | None, str, int]] = [
            ("local", "one process", 0),
            ("servers", "with rows on servers", 1),
        ]
        places = [each for each in plain if each[0] in beside.places]
    found: dict[str, None] = {}
    for resource in problem.resources:
        if not all(resource.name in layer.on for layer in problem.layers):
            continue
        stage = Stage(resource=resource.name, first_layer=0, last_layer=len(problem.layers) - 1, units=1)
        for place, words, servers in places:
            try:
                missed = evaluate(problem, [stage], place=place, servers=servers, readers=readers).violations
            except PlanError as error:
                missed = (error.message,)
            if missed:
                found[f"{words} on `{resource.name}`: {' and '.join(missed)}"] = None
    return list(found)[:MOST_REASONS]


def _more_cores(problem: Problem, demands: Demands) -> list[str]:
    """Return the cores, or the memory, of which the one machine would need more, where that is all that is missing."""
    if len(problem.machines) != 1:
        return []
    machine = problem.machines[0]

    def has_plan(cores: int, memory_bytes: float | None) -> bool:
        changed = msgspec.structs.replace(machine, cores=cores, memory_bytes=memory_bytes)
        larger = msgspec.structs.replace(problem, machines=(changed,))
        return hourly_prices(larger, demands).at(problem.min_samples_per_s).route is not None

    if machine.memory_bytes is not None and has_plan(machine.cores, None):
        rows = sum(
            layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes
            for layer in problem.layers
            if layer.kind == "embedding"
        )
        return [
            f"give machine `{machine.name}` more memory_bytes than {format_bytes(machine.memory_bytes)}: "
            f"rows alone take {format_bytes(rows)}"
        ]
    low, high = machine.cores, 2 * machine.cores
    while high <= MOST_CORES and not has_plan(high, machine.memory_bytes):
        low, high = high, 2 * high
    if high > MOST_CORES:
        return []
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if has_plan(middle, machine.memory_bytes) else (middle, high)
    return [f"raise `cores` of machine `{machine.name}` from {machine.cores} to {high}"]
