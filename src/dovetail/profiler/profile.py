"""From a model to a problem file: every layer measured on this machine, and estimated for machines elsewhere."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import torch

from dovetail.data import Batch
from dovetail.models import LayerGraph
from dovetail.profiler.layers import LayerSeconds, measure_layers
from dovetail.profiler.request import ProfileRequest, Say, first_samples
from dovetail.profiler.row_cache import Keys, estimate_row_cache, keys_of, measure_row_cache
from dovetail.profiler.sizes import LayerSizes, measure_sizes
from dovetail.profiler.workers import measure_side_by_side
from dovetail.spec import Layer, LayerTime, Link, Problem, ResourceType, Training

PEAK_SHARE = 0.6
"""Of the peak of matrix operations: layers of 1024 x 1024 reached 0.75 on an H200, smaller ones less."""
BANDWIDTH_SHARE = 0.6
ROW_BANDWIDTH_SHARE = 0.1
"""Embedding rows are read and written at random."""
OVERHEAD_S = 6e-5
"""Launching the kernels of a layer's forward, backward and update on a GPU: 40 to 120 us a layer on an H200."""
PASSES = 3
ESTIMATE_ERROR = 0.6
"""The shares were set on CTR-DNN on an H200, with an H100's data sheet: its sum is then off by 0.02, but single small
layers by a factor of up to four either way. Nothing else was checked, so the error is a guess for whole models."""
CPU_PEAK_SHARE = 0.5
CPU_OVERHEAD_S = 5e-5
"""Calling a layer forward and backward on a CPU: 48 us for an `nn.Linear` of almost no work, one thread of a Xeon."""
CPU_ESTIMATE_ERROR = 1.0
"""A guess, twice either way: threads, caches and neighbours decide as much as peaks do, and no CPU type was checked."""
UNIT_COUNTS = (1, 2, 4)
"""The law of each layer is fitted to a batch, half of it and a quarter: what each of so many units would get."""
LAYERS_S = 30.0
"""For the layers of a model, over all types and batch sizes: a step that takes seconds is not repeated for minutes."""
ENOUGH_BATCHES = 64
"""Whose keys are counted where nobody says how many."""


class Amdahl(NamedTuple):
    """Seconds on one unit, and the fraction of them that more units share."""

    seconds: float
    parallel: float


def fit_amdahl(seconds_by_units: Mapping[int, float]) -> Amdahl:
    """Return the law that comes nearest to measured times, each counted relative to itself.

    Least squares of serial / t + shared / (k t) = 1 over the points (k, t), with neither part below zero.
    """
    points = [(1 / t, 1 / (units * t)) for units, t in seconds_by_units.items() if t > 0]
    if not points:
        return Amdahl(seconds=0.0, parallel=1.0)
    aa = sum(a * a for a, _ in points)
    ab = sum(a * b for a, b in points)
    bb = sum(b * b for _, b in points)
    a_sum, b_sum = sum(a for a, _ in points), sum(b for _, b in points)
    determinant = aa * bb - ab * ab
    serial = shared = -1.0
    if determinant > 1e-12 * aa * bb:
        serial = (a_sum * bb - b_sum * ab) / determinant
        shared = (b_sum * aa - a_sum * ab) / determinant
    if serial < 0:
        serial, shared = 0.0, b_sum / bb
    elif shared < 0:
        serial, shared = a_sum / aa, 0.0
    return Amdahl(seconds=serial + shared, parallel=shared / (serial + shared))


def estimate_layer(
    sizes: LayerSizes, resource: ResourceType, *, is_embedding: bool, network_bytes_per_s: float
) -> LayerTime | None:
    """Return the time of a layer on one unit of a type, or None where the type's data sheet has no peaks.

        seconds = overhead + max(operations / (peak * share), bytes / (bandwidth * share))

    A training step is taken as three forward passes: one forward, two backward. `share` is what real layers reach of a
    data sheet's peak. Estimates are marked as such and carry a wide error: plan with them, then measure.
    """
    if resource.flops_per_s is None or resource.memory_bytes_per_s is None:
        return None
    bandwidth = resource.memory_bytes_per_s * (ROW_BANDWIDTH_SHARE if is_embedding else BANDWIDTH_SHARE)
    moved_bytes = PASSES * (sizes.input_bytes + sizes.output_bytes)
    moved_bytes += 2 * sizes.traffic_bytes if is_embedding else PASSES * (sizes.weight_bytes + sizes.optimizer_bytes)
    is_cpu = resource.kind == "cpu"
    share, overhead_s = (CPU_PEAK_SHARE, CPU_OVERHEAD_S) if is_cpu else (PEAK_SHARE, OVERHEAD_S)
    work_s = max(PASSES * sizes.forward_flops / (resource.flops_per_s * share), moved_bytes / bandwidth)
    return LayerTime(
        compute_s=overhead_s + work_s,
        comm_s=sizes.traffic_bytes / network_bytes_per_s,
        compute_parallel=work_s / (overhead_s + work_s),
        comm_parallel=1.0 if is_embedding else 0.0,
        source="estimated",
        error=CPU_ESTIMATE_ERROR if is_cpu else ESTIMATE_ERROR,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredType:
    """A type at hand: what its layers took, by how many units share the batch."""

    resource: ResourceType
    seconds_by_units: Mapping[int, tuple[LayerSeconds, ...]]

    def law(self, position: int) -> Amdahl:
        """Return the fitted law of one layer."""
        return fit_amdahl({units: layers[position].total_s for units, layers in self.seconds_by_units.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured, and the problem that follows from it."""

    graph: LayerGraph
    sizes: tuple[LayerSizes, ...]
    measured: tuple[MeasuredType, ...]
    problem: Problem


def profile(
    request: ProfileRequest,
    *,
    training: Training,
    at_hand: Sequence[ResourceType],
    elsewhere: Sequence[ResourceType] = (),
    links: Sequence[Link] = (),
    network_bytes_per_s: float,
    num_workers: int = 1,
    row_cache_batches: int | None = None,
    buses: Mapping[str, float] | None = None,
    seconds: float = LAYERS_S,
    say: Say = lambda _: None,
) -> Profile:
    """Measure every layer on the types at hand (kind `cpu`: one thread; `gpu`: the CUDA device), and write it up.

    Up to `num_workers` processes measure side by side on the CPU. Types elsewhere are estimated from their data sheets.
    `links` are the ways between types, and go into the problem as they are. What keeping only some rows of embeddings
    on a GPU costs is measured by the keys of `row_cache_batches`, and estimated for types elsewhere by their `buses`
    (bytes a second, by name); absent, it is asked for tables that do not fit there. `seconds` are shared by types and
    batch sizes: where a step takes long, it is repeated less often, and once at least.
    """
    say("building the model and its data")
    graph, batches = request.build(say)
    optimizer = request.optimizer_for(graph)
    sizes_by_units = {
        units: measure_sizes(graph, first_samples(batches, request.batch // units)[0], optimizer=optimizer)
        for units in UNIT_COUNTS
    }
    measured, until_s = [], time.monotonic() + seconds
    parts_left = len(at_hand) * len(UNIT_COUNTS)
    for resource in at_hand:
        by_units = {}
        for units in UNIT_COUNTS:
            share_s = max(0.0, until_s - time.monotonic()) / parts_left
            parts_left -= 1
            say(f"measuring layers on {resource.name}: {request.batch // units} samples, {share_s:.0f} s at most")
            by_units[units] = _measure(
                request, graph, batches, resource, units=units, num_workers=num_workers, seconds=share_s
            )
        measured.append(MeasuredType(resource=resource, seconds_by_units=by_units))
    layers = tuple(
        _layer(graph, position, sizes_by_units, measured, elsewhere, network_bytes_per_s)
        for position in range(len(graph))
    )
    gpus = {each.name: None for each in at_hand if each.kind == "gpu"} | dict(buses or {})
    wanted = [
        (position, name)
        for position, name in itertools.product(range(len(layers)), gpus)
        if layers[position].kind == "embedding" and name in layers[position].on
    ]
    if row_cache_batches is None:
        rooms = {each.name: each.memory_bytes for each in (*at_hand, *elsewhere)}
        wanted = [(at, name) for at, name in wanted if _is_too_large(layers[at], rooms[name])]
    if wanted and row_cache_batches != 0:
        counted = ENOUGH_BATCHES if row_cache_batches is None else row_cache_batches
        layers = _with_row_caches(request, graph, layers, wanted, gpus, counted, say)
    problem = Problem(training=training, resources=(*at_hand, *elsewhere), layers=layers, links=tuple(links))
    return Profile(graph=graph, sizes=sizes_by_units[1], measured=tuple(measured), problem=problem)


def _is_too_large(layer: Layer, room: float | None) -> bool:
    """Say whether an embedding does not fit into the memory of a type whole."""
    return room is not None and layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes > room


def _with_row_caches(
    request: ProfileRequest,
    graph: LayerGraph,
    layers: tuple[Layer, ...],
    wanted: Sequence[tuple[int, str]],
    gpus: Mapping[str, float | None],
    num_batches: int,
    say: Say,
) -> tuple[Layer, ...]:
    """Return the layers with what it costs to keep only some rows of their tables on a GPU here, or beyond a bus."""
    say(f"counting the keys of {num_batches} batches")
    found: dict[int, list[Keys]] = {position: [] for position, _ in wanted}
    for batch in request.batches(num_batches):
        for position, known in found.items():
            if (keys := keys_of(graph.blocks[position].module, batch)) is not None:
                known.append(keys)
    result, optimizer = list(layers), request.optimizer_for(graph)
    for position, name in wanted:
        if not found[position]:
            continue
        width, bus = int(next(graph.blocks[position].module.parameters()).shape[1]), gpus[name]
        say(f"{'measuring' if bus is None else 'estimating'} rows of {layers[position].name} that are not on {name}")
        cache = (
            measure_row_cache(found[position], width=width, optimizer=optimizer, device="cuda")
            if bus is None
            else estimate_row_cache(found[position], width=width, optimizer=optimizer, bus_bytes_per_s=bus)
        )
        on = result[position].on
        result[position] = msgspec.structs.replace(
            result[position], on={**on, name: msgspec.structs.replace(on[name], cache=cache)}
        )
    return tuple(result)


def _measure(
    request: ProfileRequest,
    graph: LayerGraph,
    batches: list[Batch],
    resource: ResourceType,
    *,
    units: int,
    num_workers: int,
    seconds: float,
) -> tuple[LayerSeconds, ...]:
    """Return the seconds of every layer for one unit's share of the batch."""
    share = request.batch // units
    optimizer = request.optimizer_for(graph)
    if resource.kind == "gpu":
        device = torch.device("cuda")
        on_device = [batch.to(device) for batch in first_samples(batches, share)]
        try:
            return measure_layers(graph.to(device), on_device, optimizer=optimizer, seconds=seconds)
        finally:
            graph.to("cpu")
    side_by_side = min(units, num_workers, os.cpu_count() or 1)
    if side_by_side > 1:
        return measure_side_by_side(request, num_workers=side_by_side, batch=share, seconds=seconds)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # a unit is one core and one thread
    try:
        return measure_layers(graph, first_samples(batches, share), optimizer=optimizer, seconds=seconds)
    finally:
        torch.set_num_threads(before)


def _layer(
    graph: LayerGraph,
    position: int,
    sizes_by_units: Mapping[int, tuple[LayerSizes, ...]],
    measured: Sequence[MeasuredType],
    elsewhere: Sequence[ResourceType],
    network_bytes_per_s: float,
) -> Layer:
    """Return a layer of the problem: its sizes, and its times on every type."""
    block, sizes = graph.blocks[position], sizes_by_units[1][position]
    traffic = fit_amdahl({units: by_unit[position].traffic_bytes for units, by_unit in sizes_by_units.items()})
    on: dict[str, LayerTime] = {}
    for each in measured:
        law = each.law(position)
        on[each.resource.name] = LayerTime(
            compute_s=law.seconds,
            comm_s=traffic.seconds / network_bytes_per_s,
            compute_parallel=law.parallel,
            comm_parallel=traffic.parallel,
            source="measured",
            error=max(layers[position].spread for layers in each.seconds_by_units.values()),
        )
    for resource in elsewhere:
        estimate = estimate_layer(
            sizes, resource, is_embedding=block.kind == "embedding", network_bytes_per_s=network_bytes_per_s
        )
        if estimate is not None:
            on[resource.name] = estimate
    return Layer(
        name=block.name,
        kind=block.kind,
        after=block.after,
        input_bytes=sizes.input_bytes,
        weight_bytes=sizes.weight_bytes,
        optimizer_bytes=sizes.optimizer_bytes,
        activation_bytes=sizes.activation_bytes,
        output_bytes=sizes.output_bytes,
        on=on,
    )
