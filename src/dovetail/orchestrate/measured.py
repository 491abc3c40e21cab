"""What a planned run took, stage by stage: as a problem to plan again, and as the measure of plans."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.catalogue import users_catalogue
from dovetail.cost import bare_problem, measured_stage
from dovetail.errors import SpecError
from dovetail.orchestrate.parts import corrected, measured_parts, part_table
from dovetail.orchestrate.profiling import CORE_USD_PER_HOUR, DEFAULT_BATCH, GPU_USD_PER_HOUR
from dovetail.runtime.errors import cannot_write
from dovetail.runtime.finished.result import TrainingResult
from dovetail.runtime.folder import MEASURED_PROBLEM, PARTS, RunSummary
from dovetail.runtime.launch.start import start
from dovetail.runtime.planned.from_plan import Machine, PlacedStage, PlannedRun, Tell, place, planned_run, quietly
from dovetail.runtime.planned.units import PlanUnit, units_of
from dovetail.spec import Plan, Problem, ResourceType, Stage, Training, write_problem
from dovetail.spec.run import Run

STEPS = 40
"""That a plan is run for to measure it: most of a second each would be long."""


def measured_stages(
    stages: Sequence[PlacedStage], stages_s: Sequence[float], *, samples: int, batch: int
) -> list[Stage]:
    """Return the stages of a run with what they took for a batch, from what they took for so many samples."""
    return [
        measured_stage(stage.here, batch=batch, workers=stage.workers, samples=samples, busy_s=busy_s)
        for stage, busy_s in zip(stages, stages_s, strict=False)
    ]


def base_problem(planned: PlannedRun) -> Problem:
    """Return the problem that a plan was made for, or what the plan alone says where that is not known."""
    if planned.problem is not None:
        return planned.problem
    batch = planned.plan.batch or planned.run.training.batch or DEFAULT_BATCH
    resources = {
        stage.planned.resource: ResourceType(
            name=stage.planned.resource,
            kind="gpu" if stage.on_gpu else "cpu",
            price_per_hour=GPU_USD_PER_HOUR if stage.on_gpu else CORE_USD_PER_HOUR * stage.unit.size,
        )
        for stage in planned.stages
    }
    training = Training(samples=planned.run.data.samples or batch, batch=batch, epochs=planned.run.training.epochs)
    return bare_problem(planned.plan, list(resources.values()), training)


def keep_measured(planned: PlannedRun, problem: Problem, result: TrainingResult) -> Problem:
    """Write what each part took into the run's folder, beside what was predicted and as a problem; return that."""
    found = corrected(problem, planned, measured_parts(planned, result, problem.training.batch))
    write_problem(found, result.folder / MEASURED_PROBLEM)
    sides = {
        "predicted_samples_per_s": planned.prediction.samples_per_s,
        "measured_samples_per_s": result.steady_samples_per_s or result.samples_per_s,
        "parts": parts_found(planned, result),
    }
    with suppress(OSError):  # nobody goes on from it
        replace_file(result.folder / PARTS, msgspec.json.encode(sides) + b"\n")
    return found


def parts_found(planned: PlannedRun, result: TrainingResult) -> list[dict[str, Any]]:
    """Return what was predicted of each part of a planned run beside what it took."""
    batch = base_problem(planned).training.batch
    return part_table(planned, measured_parts(planned, result, batch))


def keep_plan(plan: Plan, problem: Problem, folder: Path) -> None:
    """Write problem and plan beside the run."""
    write_problem(problem, folder / "problem.json")
    try:
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan) + b"\n")
    except OSError as error:
        raise cannot_write(folder / "plan.json", error) from None


def rows_found(plan: Plan, folder: Path, *, tell: Tell = quietly) -> dict[str, dict[str, dict[str, float]]]:
    """Return which part of look-ups a plan foretold to find their rows on the device, and which did, by layer.

    Nothing is returned where the plan foretold nothing, or the run had its rows elsewhere.
    """
    hits = {name: part for stage in plan.stages for name, part in (stage.row_hits or {}).items()}
    layers = [name for stage in plan.stages for name in stage.layers or ()]  # tables are in their order
    foretold = {name: hits[name] for name in layers if name in hits} or hits
    tables = RunSummary.read(folder).tables
    if not foretold or len(foretold) != len(tables):
        return {}
    measured = {name: table.hit_ratio for name, table in zip(foretold, tables, strict=True)}
    for name, part in foretold.items():
        found = f"{measured[name]:.1%} found from the start on"
        tell(f"rows of `{name}` on the device: {part:.1%} of look-ups foretold, {found}")
    return {"row_hits": {"foretold": foretold, "measured": measured}}


def limited(
    problem: Problem, machine: Machine, units: Mapping[str, PlanUnit], used: Sequence[PlacedStage] = ()
) -> Problem:
    """Return a problem with no more units of each type than a machine has, or than are in use where those are more."""
    resources = []
    for resource in problem.resources:
        unit = units.get(resource.name)
        has = 0 if unit is None else machine.has(gpu=unit.on_gpu) // unit.size
        in_use = sum(stage.units for stage in used if stage.planned.resource == resource.name)
        limit = max(min(resource.units_to_be_had, has), in_use)
        resources.append(msgspec.structs.replace(resource, limit=limit))
    return msgspec.structs.replace(problem, resources=tuple(resources))


def limited_to_here(problem: Problem) -> Problem:
    """Return a problem with no more units than this machine has, where plans are to be run here."""
    try:
        return limited(problem, Machine.this(), units_of((), problem, users_catalogue()))
    except SpecError as error:
        raise SpecError(
            f"plans of the problem cannot be run here: {error}",
            hint="profile on this machine, or measure elsewhere: --measured package.module:function",
        ) from None


def measure_runs(run: Run, *, tell: Tell = quietly) -> Callable[[Problem, Sequence[Stage]], float]:
    """Return what trains a run as planned for some steps, and returns the samples/s that it reached."""

    def reached(problem: Problem, stages: Sequence[Stage]) -> float:
        batch = run.training.batch or problem.training.batch
        samples = min(STEPS * batch, run.data.samples or STEPS * batch)
        short = msgspec.structs.replace(
            run,
            data=msgspec.structs.replace(run.data, samples=samples),
            training=msgspec.structs.replace(run.training, batch=batch, epochs=1),
        )
        machine = Machine.this()
        units = units_of(stages, problem, users_catalogue())
        placed = place(stages, machine, scale=True, units=units)
        with tempfile.TemporaryDirectory(prefix="dovetail-measured-") as folder:
            found = start(planned_run(short, placed, machine, batch), Path(folder) / "run")
        words = ", ".join(f"{stage.units} x {stage.resource}" for stage in stages)
        tell(f"ran {words}: {found.samples_per_s:,.0f} samples/s")
        return found.samples_per_s

    return reached
