"""Embeddings of which a unit keeps only some rows: what that costs in time, and what it saves in memory.

    d' = d + miss_s (1 - hits(bytes)),  of which  d b + miss_s (1 - hits(bytes))  more units can share
    memory of the rows = bytes on every unit, instead of all rows, their state and index over the units

Every unit keeps the rows that its own part of the batches asks for most, and fetches the others over its own bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dovetail.errors import PlanError
from dovetail.spec import Layer, LayerTime, Problem, Stage
from dovetail.units import format_bytes


def with_budget(layer: Layer, resource: str, rows_bytes: float) -> Layer:
    """Return a layer of which a unit of a type keeps `rows_bytes` of rows."""
    before = layer.on[resource]
    if before.cache is None:
        raise PlanError(
            f"layer `{layer.name}` has no [layer.on.{resource}.cache], so what few rows cost is not known",
            hint="profile it, or leave row_budgets away",
        )
    if rows_bytes < before.cache.least_bytes:
        raise PlanError(
            f"layer `{layer.name}` is given {format_bytes(rows_bytes)} of rows on each `{resource}`, and those of one "
            f"batch take {format_bytes(before.cache.least_bytes)}",
            hint=f"give row_budgets of at least {before.cache.least_bytes:.0f}",
        )
    missed_s = before.cache.miss_s * (1 - before.cache.hit_ratio(rows_bytes))
    comm_s = before.comm_s + missed_s
    parallel = (before.comm_s * before.comm_parallel + missed_s) / comm_s if comm_s else before.comm_parallel
    time: LayerTime = msgspec.structs.replace(
        before, comm_s=comm_s, comm_parallel=min(1.0, parallel), rows_bytes=rows_bytes, cache=None
    )
    return msgspec.structs.replace(layer, on={**layer.on, resource: time})


def settled(problem: Problem, stages: Sequence[Stage]) -> Problem:
    """Return the problem with the budgets that a plan gives its embeddings."""
    layers = list(problem.layers)
    for number, stage in enumerate(stages):
        for name, rows_bytes in (stage.row_budgets or {}).items():
            places = [at for at in range(stage.first_layer, stage.last_layer + 1) if layers[at].name == name]
            if not places:
                raise PlanError(
                    f"stages[{number}].row_budgets names `{name}`, which is none of its layers",
                    hint="name an embedding of the stage",
                )
            layers[places[0]] = with_budget(layers[places[0]], stage.resource, rows_bytes)
    return msgspec.structs.replace(problem, layers=tuple(layers)) if layers != list(problem.layers) else problem


def budgets_of(layers: Sequence[Layer], resource: str) -> Mapping[str, float] | None:
    """Return what layers of a settled problem keep on a unit of a type, by name; None where all keep everything."""
    found = {layer.name: layer.on[resource].rows_bytes for layer in layers}
    return {name: held for name, held in found.items() if held is not None} or None


def hits_of(problem: Problem, stage: Stage) -> dict[str, float]:
    """Return the part of a batch's rows that each embedding of a stage finds in what it is given, by name."""
    caches = {layer.name: layer.on[stage.resource].cache for layer in problem.layers if stage.resource in layer.on}
    return {
        name: cache.hit_ratio(rows_bytes)
        for name, rows_bytes in (stage.row_budgets or {}).items()
        if (cache := caches.get(name)) is not None
    }
