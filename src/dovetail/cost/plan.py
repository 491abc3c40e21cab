"""What a plan costs, worked out from the problem alone: an evaluator that knows nothing of how plans are made.

    stage samples/s = B / time(k);  plan samples/s = min over stages
    hours = epochs * samples / (plan samples/s) / 3600
    cost  = hours * (sum over stages of price_per_hour * k  +  first node)  +  egress
    egress = epochs * samples / B * sum over cuts between sites of bytes * price per byte, there and back

B is the batch, k the units of a stage. Where a problem says what runs beside the layers, and a plan where its rows are,
a batch takes what `cost.beside` says, all cores are paid for, and machines must have room for everybody.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dovetail.cost.beside import (
    batch_seconds,
    check_place,
    core_type,
    cores_of,
    machine_violations,
    parts_of,
    rows_violations,
    served,
    whole_of,
)
from dovetail.cost.memory import plan_memory
from dovetail.cost.row_budget import settled
from dovetail.cost.stage import StageTimes, add_up
from dovetail.errors import PlanError, did_you_mean
from dovetail.spec import Link, Part, Place, Plan, Problem, SiteLink, Stage, Whole
from dovetail.units import format_bytes, format_plain

ROUNDING = 1e-9
"""A throughput that misses the floor by less than this fraction is rounding, not a miss."""


def crossing_bytes(problem: Problem, after_layer: int) -> float:
    """Return the bytes of one batch that cross the cut behind layer `after_layer`: every edge over it counts."""
    return sum(
        problem.layers[producer].output_bytes
        for producer, consumer in problem.edges()
        if producer <= after_layer < consumer
    )


def cut_seconds(payload_bytes: float, *, forward: Link, backward: Link, units: int) -> float:
    """Return what a cut adds to the communication of a stage of `units`.

    The payload goes one way and as much comes back, shared by the stage's own units:

        payload / forward_bandwidth / k + forward_latency + payload / backward_bandwidth / k + backward_latency

    which is `2 payload / bandwidth / k + 2 latency` on a link that is the same both ways.
    """
    return sum(payload_bytes / link.bytes_per_s / units + link.latency_s for link in (forward, backward))


def site_cut_seconds(payload_bytes: float, *, forward: SiteLink, backward: SiteLink) -> float:
    """Return what a cut between two sites adds to the communication of a stage, however many units it has.

    payload / forward_bandwidth + forward_latency + payload / backward_bandwidth + backward_latency

    A cut between two sites takes the link between them, which all units of a stage share, and pays for its bytes by the
    price of the way they leave (egress).
    """
    return sum(payload_bytes / link.bytes_per_s + link.latency_s for link in (forward, backward))


def egress_usd(payload_bytes: float, *, forward: SiteLink, backward: SiteLink) -> float:
    """Return what a batch pays at a cut between two sites: activations the way there, gradients the way back."""
    return payload_bytes * (forward.price_per_byte + backward.price_per_byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvaluation:
    """What a plan costs, how fast it is, and every demand it misses."""

    samples_per_s: float
    cost_per_hour: float
    hours: float
    cost: float
    stage_seconds: tuple[float, ...]
    bottleneck: int
    violations: tuple[str, ...]
    egress_cost: float = 0.0
    """The part of `cost` that is paid for bytes between sites."""
    egress_bytes: float = 0.0
    cores: int = 0
    """All that are taken: units of kind cpu, and where the problem says what runs beside the layers, of that too."""
    parts: tuple[Part, ...] = ()
    """What each part takes, where the problem says what runs beside the layers and the plan where its rows are."""


def evaluate_plan(problem: Problem, plan: Plan, *, split_stages: bool = False) -> PlanEvaluation:
    """Return what a plan costs, with its place of rows, servers and readers."""
    servers, readers = plan.servers or 0, plan.readers or 0
    return evaluate(problem, plan.stages, split_stages=split_stages, place=plan.place, servers=servers, readers=readers)


def evaluate(
    problem: Problem,
    stages: Sequence[Stage],
    *,
    split_stages: bool = False,
    place: Place | None = None,
    servers: int = 0,
    readers: int = 0,
) -> PlanEvaluation:
    """Return what `stages` cost on `problem`, with the demands they miss.

    Raises PlanError where they cannot be priced at all: unknown types, layers left out or placed twice, a layer on a
    type it cannot run on, neighbours without a link. Neighbours of one type are one stage unless `split_stages`.
    Without `place`, or where the problem has no [beside], the stages alone are priced.
    """
    _check_structure(problem, stages, split_stages=split_stages)
    beside = None if place is None else problem.beside
    if beside is None or place is None:
        return _stages_alone(problem, stages)
    check_place(problem, stages, place, servers, readers)
    whole = whole_of(beside, place, stages, servers)
    if whole is not None:
        return _measured_whole(problem, stages, whole)
    problem = settled(problem, stages)
    stages = [msgspec.structs.replace(stage, row_budgets=None) for stage in stages]  # they are in the problem now
    rows_missing = rows_violations(problem, stages, place=place)
    if place == "servers":
        problem = served(problem)
        rows_missing += _memory_violations(problem, stages)
    stage_s = _stage_seconds(problem, stages)
    beside_them = {"servers": servers, "readers": readers}
    batch_s = batch_seconds(problem, stages, stage_s, place=place, **beside_them)
    cores = sum(cores_of(problem, stages, fed=True)) + servers + readers
    found = _priced(problem, stages, stage_s, batch_s=batch_s, cores=cores, place=place)
    parts = parts_of(problem, stages, stage_s, place=place, batch_s=batch_s, **beside_them)
    return dataclasses.replace(found, parts=parts, violations=(*found.violations, *rows_missing))


def _stages_alone(problem: Problem, stages: Sequence[Stage]) -> PlanEvaluation:
    """Return what stages cost with nothing beside them."""
    problem = settled(problem, stages)
    stages = [msgspec.structs.replace(stage, row_budgets=None) for stage in stages]
    stage_s = _stage_seconds(problem, stages)
    cores = sum(cores_of(problem, stages, fed=False))
    found = _priced(problem, stages, stage_s, batch_s=max(stage_s), cores=cores, place=None)
    return dataclasses.replace(found, violations=(*found.violations, *_memory_violations(problem, stages)))


def _measured_whole(problem: Problem, stages: Sequence[Stage], whole: Whole) -> PlanEvaluation:
    """Return what a layout costs that was measured as a whole; it ran, so its memory is not asked about."""
    batch_s = whole.seconds_per_batch
    found = _priced(problem, stages, (batch_s,), batch_s=batch_s, cores=whole.cores, place=whole.place)
    return dataclasses.replace(found, parts=(Part(part="whole", seconds_per_batch=batch_s, cores=whole.cores),))


def _stage_seconds(problem: Problem, stages: Sequence[Stage]) -> tuple[float, ...]:
    return tuple(stage_times(problem, stages, position).seconds for position in range(len(stages)))


def _priced(
    problem: Problem,
    stages: Sequence[Stage],
    stage_s: tuple[float, ...],
    *,
    batch_s: float,
    cores: int,
    place: Place | None,
) -> PlanEvaluation:
    """Return what stages cost where a batch takes `batch_s`; what they miss but for memory."""
    batch = problem.training.batch
    samples_per_s = batch / batch_s if batch_s > 0 else math.inf
    hours = problem.training.total_samples / batch * batch_s / 3600
    paid_as, more_cores = core_type(problem), cores - sum(cores_of(problem, stages, fed=False))
    cost_per_hour = sum(problem.resource(stage.resource).price_per_hour * stage.units for stage in stages)
    cost_per_hour += problem.first_node_per_hour
    if paid_as is not None:
        cost_per_hour += paid_as.price_per_hour * more_cores
    egress_cost, egress_bytes = _egress(problem, stages)
    missed = _violations(problem, stages, samples_per_s, {paid_as.name: more_cores} if paid_as is not None else {})
    missed += machine_violations(problem, stages, cores, place=place)
    return PlanEvaluation(
        samples_per_s=samples_per_s,
        cost_per_hour=cost_per_hour,
        hours=hours,
        cost=hours * cost_per_hour + egress_cost,
        stage_seconds=stage_s,
        bottleneck=stage_s.index(max(stage_s)),
        violations=tuple(missed),
        egress_cost=egress_cost,
        egress_bytes=egress_bytes,
        cores=cores,
    )


def stage_times(problem: Problem, stages: Sequence[Stage], position: int) -> StageTimes:
    """Return what the stage at `position` takes for one batch, for stages that `evaluate` can price."""
    problem, stage = settled(problem, stages), stages[position]
    layers = problem.layers[stage.first_layer : stage.last_layer + 1]
    times = [layer.on[stage.resource] for layer in layers]
    cut_s = 0.0
    for upstream, downstream in itertools.pairwise(stages[max(position - 1, 0) : position + 2]):
        one, other = upstream.resource, downstream.resource
        payload = crossing_bytes(problem, upstream.last_layer)
        forward, backward = problem.link(one, other), problem.link(other, one)
        if forward is not None and backward is not None:
            cut_s += cut_seconds(payload, forward=forward, backward=backward, units=stage.units)
        there, back = problem.site_link(one, other), problem.site_link(other, one)
        if there is not None and back is not None:
            cut_s += site_cut_seconds(payload, forward=there, backward=back)
    return add_up(times, units=stage.units, cut_s=cut_s)


def _egress(problem: Problem, stages: Sequence[Stage]) -> tuple[float, float]:
    """Return the USD that the whole training pays for bytes between sites, and those bytes."""
    usd, sent_bytes = 0.0, 0.0
    for upstream, downstream in itertools.pairwise(stages):
        forward = problem.site_link(upstream.resource, downstream.resource)
        backward = problem.site_link(downstream.resource, upstream.resource)
        if forward is not None and backward is not None:
            payload = crossing_bytes(problem, upstream.last_layer)
            usd += egress_usd(payload, forward=forward, backward=backward)
            sent_bytes += 2 * payload
    batches = problem.training.total_samples / problem.training.batch
    return batches * usd, batches * sent_bytes


def _check_structure(problem: Problem, stages: Sequence[Stage], *, split_stages: bool) -> None:
    """Refuse stages that do not place every layer exactly once, where it can run."""
    hint = "stages list every layer once and in order, from 0 to the last"
    if not stages:
        raise PlanError("there are no stages", hint=hint)
    expected = 0
    for position, stage in enumerate(stages):
        key = f"stages[{position}]"
        names = [resource.name for resource in problem.resources]
        if stage.resource not in names:
            raise PlanError(
                f'{key}.resource is "{stage.resource}", which is no resource', hint=did_you_mean(stage.resource, names)
            )
        if stage.first_layer != expected:
            raise PlanError(f"{key}.first_layer is {stage.first_layer}, expected {expected}", hint=hint)
        if stage.last_layer >= len(problem.layers):
            raise PlanError(
                f"{key}.last_layer is {stage.last_layer}, but the last layer is {len(problem.layers) - 1}", hint=hint
            )
        for layer in problem.layers[stage.first_layer : stage.last_layer + 1]:
            if stage.resource not in layer.on:
                raise PlanError(
                    f"{key} puts layer `{layer.name}` on `{stage.resource}`, where it cannot run",
                    hint="it can run on: " + ", ".join(f"`{name}`" for name in layer.on),
                )
        if position > 0:
            _check_neighbours(problem, stages[position - 1], stage, key, split_stages=split_stages)
        expected = stage.last_layer + 1
    if expected != len(problem.layers):
        raise PlanError(
            f"stages end at layer {expected - 1}, but the last layer is {len(problem.layers) - 1}", hint=hint
        )


def _check_neighbours(problem: Problem, upstream: Stage, stage: Stage, key: str, *, split_stages: bool) -> None:
    """Refuse two stages side by side that are one stage, or that no link joins."""
    if upstream.resource == stage.resource and not split_stages:
        raise PlanError(
            f"{key} is on `{stage.resource}` like the stage before it",
            hint="a stage is a maximal run of layers on one type: make the two one, or allow split stages",
        )
    if not problem.can_join(upstream.resource, stage.resource):
        one, other = problem.resource(upstream.resource), problem.resource(stage.resource)
        if problem.site_links and one.site != other.site:
            table, missing = f'[[site_link]] from = "{one.site}" to = "{other.site}"', "no link joins the two sites"
        else:
            table, missing = f'[[link]] from = "{one.name}" to = "{other.name}"', "no link joins the two"
        raise PlanError(
            f"{key} follows `{one.name}` on `{other.name}`, and {missing}", hint=f"add {table}, or keep them apart"
        )


def _violations(
    problem: Problem, stages: Sequence[Stage], samples_per_s: float, more_units: Mapping[str, int]
) -> list[str]:
    """Return the floor and the limits that a priced plan misses, each as a sentence; `more_units` are in no stage."""
    found = []
    floor = problem.training.min_samples_per_s
    if samples_per_s < floor * (1 - ROUNDING):
        found.append(f"{format_plain(samples_per_s)} samples/s is below min_samples_per_s = {format_plain(floor)}")
    used: Counter[str] = Counter()
    for stage in stages:
        used[stage.resource] += stage.units
    for name, units in more_units.items():
        if units:
            used[name] += units
    for name, units in used.items():
        limit = problem.resource(name).units_to_be_had
        if units > limit:
            found.append(f"{units} units of `{name}` are more than its limit of {limit}")
    return found


def _memory_violations(problem: Problem, stages: Sequence[Stage]) -> list[str]:
    """Return the stages that do not fit into the memory of their units, each as a sentence."""
    found = []
    for stage, memory in zip(stages, plan_memory(problem, stages), strict=True):
        room_bytes = problem.resource(stage.resource).memory_bytes
        if room_bytes is not None and memory.total_bytes > room_bytes * (1 + ROUNDING):
            found.append(
                f"a unit of `{stage.resource}` would hold {format_bytes(memory.total_bytes)} of layers "
                f"{stage.first_layer} to {stage.last_layer}, and has {format_bytes(room_bytes)}"
            )
    return found
