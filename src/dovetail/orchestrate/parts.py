"""What a planned run took, part by part, beside what was predicted; and the problem that learns from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.cost import evaluate, measured_problem
from dovetail.errors import PlanError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.result import TrainingResult
from dovetail.runtime.folder import RunSummary
from dovetail.runtime.planned.from_plan import PlannedRun
from dovetail.spec import Beside, Part, Plan, Problem, Stage, Whole

WHOLE = "whole"
LEAST_S = 1e-9
"""A part that takes less is none that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredParts:
    """Seconds of a batch that each part of a run took; what is not known is None."""

    stages: tuple[float | None, ...]
    read_core_s: float | None = None
    """Of one core."""
    server_core_s: float | None = None
    """Of one server."""
    whole_s: float | None = None
    error: float | None = None
    """Of the whole: how much it went up and down, relative."""
    readers: int = 1
    """Threads that read."""
    servers: int = 0

    def by_name(self) -> dict[str, float | None]:
        """Return what each part took, as a plan's parts are called."""
        found: dict[str, float | None] = {
            "read": None if self.read_core_s is None else self.read_core_s / self.readers,
            "servers": None if self.server_core_s is None else self.server_core_s / max(1, self.servers),
        }
        found |= {f"stage {number}": seconds for number, seconds in enumerate(self.stages)}
        if self.servers:
            found["step"] = self.step_s
        found[WHOLE] = self.whole_s
        return found

    @property
    def step_s(self) -> float | None:
        """Return what is left of a step beside its slowest part."""
        if self.whole_s is None or None in self.stages or not self.stages:
            return None
        parts = [each for each in self.stages if each is not None]
        if self.read_core_s is not None:
            parts.append(self.read_core_s / self.readers)
        if self.server_core_s is not None:
            parts.append(self.server_core_s / max(1, self.servers))
        return max(0.0, self.whole_s - max(parts))


def measured_parts(planned: PlannedRun, result: TrainingResult, batch: int) -> MeasuredParts:
    """Return what the parts of a run took, from its summary and its pace."""
    rate = result.steady_samples_per_s or result.samples_per_s
    whole_s = batch / rate if rate else None
    try:
        summary = RunSummary.read(result.folder)
    except TrainingError:  # a full disk left none
        return MeasuredParts(stages=(None,) * len(planned.stages), whole_s=whole_s)
    samples = sum(worker.samples for worker in summary.workers.values())
    if not samples:
        return MeasuredParts(stages=(None,) * len(planned.stages), whole_s=whole_s)

    def a_batch(seconds: float) -> float | None:
        return seconds * batch / samples if seconds > LEAST_S else None

    read_s = a_batch(sum(worker.read_s for worker in summary.workers.values()))
    server_s = a_batch(sum(server.busy_s for server in summary.servers.values()))
    return MeasuredParts(
        stages=_stages(planned, summary, batch),
        read_core_s=None if planned.plan.place == "sharded" else read_s,
        server_core_s=server_s,
        whole_s=whole_s,
        error=result.steady_spread,
        readers=planned.plan.readers or max(1, len(summary.workers)),
        servers=len(summary.servers),
    )


def _stages(planned: PlannedRun, summary: RunSummary, batch: int) -> tuple[float | None, ...]:
    """Return what each stage computed for a batch; one process, or workers that own rows, are one stage."""
    if summary.stages:
        taken = [(stage.busy_s, stage.samples, stage.workers) for stage in summary.stages]
    else:
        workers = summary.workers.values()
        busy_s, samples = sum(each.busy_s for each in workers), sum(each.samples for each in workers)
        taken = [(busy_s, samples, max(1, len(summary.workers)))]
    found = [
        busy_s * batch / samples / workers if busy_s > LEAST_S and samples else None
        for busy_s, samples, workers in taken
    ]
    return tuple(found) if len(found) == len(planned.stages) else (None,) * len(planned.stages)


def part_table(planned: PlannedRun, measured: MeasuredParts) -> list[dict[str, Any]]:
    """Return every part with its seconds for a batch as predicted and as measured; the last is the whole."""
    plan, found = planned.plan, measured.by_name()
    predicted = predicted_parts(planned, measured)
    batch, rate = plan.batch or planned.run.training.batch, planned.prediction.samples_per_s
    whole_s = batch / rate if batch and rate else None
    names = [*predicted, *(name for name in found if found[name] is not None and name not in predicted)]
    rows = [
        (name, predicted[name].cores if name in predicted else 0, predicted.get(name))
        for name in names
        if name != WHOLE
    ]
    table = [
        {
            "part": name,
            "cores": cores or None,
            "predicted_seconds_per_batch": None if part is None else part.seconds_per_batch,
            "measured_seconds_per_batch": found.get(name),
        }
        for name, cores, part in rows
    ]
    return [
        *table,
        {
            "part": WHOLE,
            "cores": plan.cores,
            "predicted_seconds_per_batch": whole_s,
            "measured_seconds_per_batch": measured.whole_s,
        },
    ]


def predicted_parts(planned: PlannedRun, measured: MeasuredParts) -> dict[str, Part]:
    """Return what was predicted of each part but the whole; of a layout that was measured whole, by the formulas."""
    plan, problem = planned.plan, planned.problem
    parts = plan.parts
    if plan.place is None or problem is None or problem.beside is None:
        stages = enumerate(planned.prediction.stage_seconds)
        parts = tuple(
            Part(part=f"stage {number}", seconds_per_batch=each) for number, each in stages if each is not None
        )
    elif [part.part for part in parts] == [WHOLE] and plan.place != "sharded":
        by_formulas = msgspec.structs.replace(problem, beside=msgspec.structs.replace(problem.beside, wholes=()))
        stages_here = [stage.here for stage in planned.stages]
        servers, readers = measured.servers if plan.place == "servers" else 0, measured.readers
        with suppress(PlanError):  # what servers take was not measured
            parts = evaluate(
                by_formulas, stages_here, split_stages=True, place=plan.place, servers=servers, readers=readers
            ).parts
    return {part.part: part for part in parts if part.part != WHOLE}


def corrected(problem: Problem, planned: PlannedRun, measured: MeasuredParts) -> Problem:
    """Return the problem with what a run showed of each part.

    A layout on one type is noted as a whole, in the place of what was known of it. Parts that other layouts share,
    reading, servers, what workers spend on rows and the step, become what they were. Layers are scaled as
    `measured_problem` says where they stand alone in their stage; where servers keep rows, what workers spend on those
    is scaled along with the layers beside them, and the embeddings' own times stay.
    """
    beside = problem.beside
    stages = _with_seconds(planned.stages, measured.stages)
    if beside is None or planned.plan.place is None:
        return measured_problem(problem, stages)
    if planned.plan.place == "servers":
        problem, beside = _of_servers(problem, beside, planned.plan, stages, measured)
    elif measured.read_core_s is not None:
        beside = msgspec.structs.replace(beside, read_core_s=measured.read_core_s)
    return msgspec.structs.replace(problem, beside=_with_whole(beside, planned, measured))


def _with_seconds(stages: Sequence[Any], seconds: Sequence[float | None]) -> list[Stage]:
    """Return stages with what they took."""
    return [
        msgspec.structs.replace(stage.here, seconds_per_batch=taken)
        for stage, taken in zip(stages, seconds, strict=True)
    ]


def _of_servers(
    problem: Problem, beside: Beside, plan: Plan, stages: Sequence[Stage], measured: MeasuredParts
) -> tuple[Problem, Beside]:
    """Return a problem, and what is beside its layers, with what servers and their workers took."""
    client_s, layers = dict(beside.client_s), list(problem.layers)
    rows_stage = next(
        (
            number
            for number, stage in enumerate(stages)
            if any(layer.kind == "embedding" for layer in layers[stage.first_layer : stage.last_layer + 1])
        ),
        None,
    )
    for number, stage in enumerate(stages):
        own = range(stage.first_layer, stage.last_layer + 1)
        computing = [at for at in own if layers[at].kind != "embedding"]
        times = {at: layers[at].on[stage.resource] for at in computing}
        modelled_s = sum(
            time.compute_s * (1 - time.compute_parallel + time.compute_parallel / stage.units)
            for time in times.values()
        )
        if number == rows_stage:
            shared = beside.client_parallel.get(stage.resource, 1.0)
            modelled_s += client_s.get(stage.resource, 0.0) * (1 - shared + shared / stage.units)
        if stage.seconds_per_batch is None or modelled_s <= 0:
            continue
        factor = stage.seconds_per_batch / modelled_s
        if number == rows_stage and stage.resource in client_s:
            client_s[stage.resource] *= factor
        for at, time in times.items():
            scaled = msgspec.structs.replace(time, compute_s=time.compute_s * factor, source="measured", error=None)
            layers[at] = msgspec.structs.replace(layers[at], on={**layers[at].on, stage.resource: scaled})
    step_s = beside.step_s
    predicted = {part.part: part.seconds_per_batch for part in plan.parts}
    if measured.step_s is not None and "step" in predicted:  # filling and draining are in it as well
        step_s = max(0.0, step_s + measured.step_s - predicted["step"])
    now = msgspec.structs.replace(
        beside,
        client_s=client_s,
        step_s=step_s,
        read_core_s=beside.read_core_s if measured.read_core_s is None else measured.read_core_s,
        server_core_s=beside.server_core_s if measured.server_core_s is None else measured.server_core_s,
    )
    return msgspec.structs.replace(problem, layers=tuple(layers)), now


def _with_whole(beside: Beside, planned: PlannedRun, measured: MeasuredParts) -> Beside:
    """Return what is beside the layers with a layout on one type as it was seen as a whole."""
    plan, place = planned.plan, planned.plan.place
    if place is None or len(planned.stages) != 1 or measured.whole_s is None:
        return beside
    stage = planned.stages[0]
    units = 1 if place == "local" and stage.on_gpu else stage.units
    servers = (plan.servers or 0) if place == "servers" else 0
    known: Mapping[tuple[Any, ...], Whole] = {_key(whole): whole for whole in beside.wholes}
    key = (place, stage.planned.resource, units, servers)
    least = servers + (beside.host_cores.get(stage.planned.resource, 0) * units if stage.on_gpu else units)
    cores = known[key].cores if key in known else max(plan.cores or 0, least)
    whole = Whole(
        place=place,
        resource=stage.planned.resource,
        units=units,
        servers=servers,
        cores=cores,
        seconds_per_batch=measured.whole_s,
        error=measured.error,
    )
    others = tuple(each for each in beside.wholes if _key(each) != key)
    return msgspec.structs.replace(beside, wholes=(*others, whole))


def _key(whole: Whole) -> tuple[str, str, int, int]:
    """Return what tells layouts apart."""
    return whole.place, whole.resource, whole.units, whole.servers
