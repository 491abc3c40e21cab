"""What the stages of a planned run took, as a problem that can be planned again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dovetail.cli.output import write_file
from dovetail.cli.planned import PlannedRun
from dovetail.cli.profile import CORE_USD_PER_HOUR, GPU_USD_PER_HOUR
from dovetail.cost import StageTook, bare_problem, measured_problem
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import MEASURED_PROBLEM, RunSummary
from dovetail.runtime.planned.from_plan import Machine, PlacedStage
from dovetail.runtime.planned.units import PlanUnit
from dovetail.spec import Plan, Problem, ResourceType, Training, write_problem


def took(stages: Sequence[PlacedStage], stages_s: Sequence[float], samples: int) -> list[StageTook]:
    """Return what the stages of a run took for so many samples."""
    return [
        StageTook(
            stage=stage.as_stage(),
            workers=stage.workers,
            samples=samples,
            busy_s=busy_s,
        )
        for stage, busy_s in zip(stages, stages_s, strict=False)
    ]


def base_problem(planned: PlannedRun) -> Problem:
    """Return the problem that a plan was made for, or what the plan alone says where that is not known."""
    if planned.problem is not None:
        return planned.problem
    batch = planned.plan.batch or planned.run.training.batch or 4096
    resources = {
        stage.resource: ResourceType(
            name=stage.resource,
            kind="gpu" if stage.on_gpu else "cpu",
            price_per_hour=GPU_USD_PER_HOUR if stage.on_gpu else CORE_USD_PER_HOUR * stage.unit.size,
        )
        for stage in planned.stages
    }
    training = Training(samples=planned.run.data.samples or batch, batch=batch, epochs=planned.run.training.epochs)
    return bare_problem(planned.plan, list(resources.values()), training)


def keep_measured(planned: PlannedRun, problem: Problem, folder: Path) -> Problem:
    """Write what the stages took into the run's folder as a problem, and return it."""
    try:
        stages = RunSummary.read(folder).stages
    except TrainingError:  # a full disk left none
        return problem
    samples = stages[0].samples if stages else 0
    found = measured_problem(problem, took(planned.stages, [stage.busy_s for stage in stages], samples))
    write_problem(found, folder / MEASURED_PROBLEM)
    return found


def keep_plan(plan: Plan, problem: Problem, folder: Path) -> None:
    """Write problem and plan beside the run."""
    write_problem(problem, folder / "problem.json")
    write_file(folder / "plan.json", msgspec.json.encode(plan) + b"\n")


def limited(
    problem: Problem, machine: Machine, units: Mapping[str, PlanUnit], used: Sequence[PlacedStage] = ()
) -> Problem:
    """Return a problem with no more units of each type than a machine has, or than are in use where those are more."""
    resources = []
    for resource in problem.resources:
        unit = units.get(resource.name)
        has = 0 if unit is None else machine.has(gpu=unit.on_gpu) // unit.size
        in_use = sum(stage.units for stage in used if stage.resource == resource.name)
        limit = max(min(resource.units_to_be_had, has), in_use)
        resources.append(msgspec.structs.replace(resource, limit=limit))
    return msgspec.structs.replace(problem, resources=tuple(resources))
