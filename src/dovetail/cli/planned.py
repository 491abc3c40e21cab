"""A run as a plan says: what its units are on this machine is shown before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import say
from dovetail.errors import DovetailError, PlanError

if TYPE_CHECKING:
    from dovetail.runtime.planned.from_plan import Machine, PlacedStage, Prediction
    from dovetail.runtime.planned.units import PlanUnit
    from dovetail.spec import Plan, Problem
    from dovetail.spec.run import Dense, Run

BESIDE = ("problem.json", "problem.toml")
"""What the problem of a plan is called in the plan's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run with the workers and stages of a plan, and what that plan is here."""

    run: Run
    before: Run
    """As it was without the plan."""
    plan: Plan
    problem: Problem | None
    """That the plan was made for, where it was found."""
    stages: Sequence[PlacedStage]
    units: Mapping[str, PlanUnit]
    """What a unit of each type is here."""
    machine: Machine
    prediction: Prediction
    dense: Dense | None
    """Where dense parameters are kept, where someone chose."""


def run_as_planned(
    run: Run,
    plan_file: Path,
    *,
    scale: bool,
    problem_file: Path | None = None,
    dense: Dense | None = None,
    machine: Machine | None = None,
) -> PlannedRun:
    """Return a run with the workers and stages of a plan file, and show them; without a machine, on this one."""
    from dovetail.runtime.planned.from_plan import Machine
    from dovetail.spec import Plan
    from dovetail.spec.files import read_struct

    plan = read_struct(plan_file, Plan)
    problem = problem_of(plan, plan_file, problem_file)
    return placed(run, plan, problem, machine or Machine.this(), scale=scale, dense=dense)


def placed(
    run: Run, plan: Plan, problem: Problem | None, machine: Machine, *, scale: bool = False, dense: Dense | None = None
) -> PlannedRun:
    """Return a run with the workers and stages of a plan, and show them; refuse what does not fit here."""
    from dovetail.cli.catalogue import load
    from dovetail.runtime.planned.from_plan import (
        check_memory,
        dense_of,
        keeps_rows_on_gpu,
        place,
        planned_run,
        predict,
    )
    from dovetail.runtime.planned.units import units_of

    units = units_of(plan.stages, problem, load(None))
    stages = place(plan.stages, machine, scale=scale, units=units)
    if problem is not None:
        check_memory(problem, stages, machine)
    if any(stage.row_budgets for stage in stages) and not keeps_rows_on_gpu(stages):
        say("rows are kept by servers: a plan of several workers has no rows on GPUs yet, and is slower than planned")
    dense = dense or dense_of(plan)
    found = PlannedRun(
        run=planned_run(run, stages, machine, plan.batch, dense=dense),
        before=run,
        plan=plan,
        problem=problem,
        stages=stages,
        units=units,
        machine=machine,
        prediction=predict(plan, stages, problem),
        dense=dense,
    )
    show_places(found)
    return found


def problem_of(plan: Plan, plan_file: Path, problem_file: Path | None) -> Problem | None:
    """Return the problem that a plan was made for: the one that is named, or one in the plan's folder that fits it."""
    from dovetail.catalogue import read_problem_with
    from dovetail.cli.catalogue import load

    if problem_file is not None:
        problem = read_problem_with(load(None), problem_file)
        _check_fits(plan, problem, problem_file)
        return problem
    for path in (plan_file.parent / name for name in BESIDE):
        if not path.is_file():
            continue
        try:
            problem = read_problem_with(load(None), path)
            _check_fits(plan, problem, path)
        except DovetailError as error:
            say(f"{path} is not looked at: {error}")
            continue
        return problem
    return None


def _check_fits(plan: Plan, problem: Problem, path: Path) -> None:
    """Refuse a problem of other layers or types than the plan's."""
    from dovetail.cost import evaluate

    hint = "give the problem that the plan was made for: --problem FILE"
    try:
        evaluate(problem, plan.stages, split_stages=True)
    except PlanError as error:
        raise PlanError(f"{path} is not the plan's problem: {error}", hint=hint) from None
    for number, stage in enumerate(plan.stages):
        names = tuple(layer.name for layer in problem.layers[stage.first_layer : stage.last_layer + 1])
        if stage.layers is not None and stage.layers != names:
            raise PlanError(
                f"{path} is not the plan's problem: stage {number} has the layers {', '.join(stage.layers)}, and "
                f"those there are {', '.join(names)}",
                hint=hint,
            )


def rows_found(plan: Plan, folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return which part of look-ups a plan foretold to find their rows on the device, and which did, by layer; say it.

    Nothing is returned where the plan foretold nothing, or the run had its rows elsewhere.
    """
    from dovetail.runtime.folder import RunSummary

    hits = {name: part for stage in plan.stages for name, part in (stage.row_hits or {}).items()}
    layers = [name for stage in plan.stages for name in stage.layers or ()]  # tables are in their order
    foretold = {name: hits[name] for name in layers if name in hits} or hits
    tables = RunSummary.read(folder).tables
    if not foretold or len(foretold) != len(tables):
        return {}
    measured = {name: table.hit_ratio for name, table in zip(foretold, tables, strict=True)}
    for name, part in foretold.items():
        found = f"{measured[name]:.1%} found from the start on"
        say(f"rows of `{name}` on the device: {part:.1%} of look-ups foretold, {found}")
    return {"row_hits": {"foretold": foretold, "measured": measured}}


def show_places(planned: PlannedRun) -> None:
    """Say what the plan asks for, what this machine has, what each stage runs on here, and how fast that should be."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from dovetail.units import format_duration

    machine, prediction = planned.machine, planned.prediction
    say(f"{machine.called} {machine.cores} core{'s' * (machine.cores != 1)} and {machine.gpus} GPUs; the plan:")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("stage", "layers", "type", "a unit is", "planned", "here", "predicted a batch"):
        is_text = heading in ("layers", "type", "a unit is")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for number, (stage, seconds) in enumerate(zip(planned.stages, prediction.stage_seconds, strict=True)):
        less = f", here {stage.size}" if stage.size != stage.unit.size else ""
        table.add_row(
            str(number),
            f"{stage.first_layer} to {stage.last_layer}",
            stage.resource,
            f"{stage.unit}{less}",
            str(stage.planned),
            str(stage.units),
            "-" if seconds is None else format_duration(seconds),
        )
    console = Console(file=sys.stderr, width=200)
    console.print(table)
    for line in [*_predicted(planned), *_in_sync(planned)]:
        console.print(line, highlight=False)


def _predicted(planned: PlannedRun) -> list[str]:
    """Return in words how fast the plan should be."""
    from dovetail.units import format_plain

    prediction = planned.prediction
    whole = f"{format_plain(prediction.planned_samples_per_s)} samples/s"
    if all(stage.is_as_planned for stage in planned.stages):
        return [f"predicted: {whole}"]
    lines = [f"predicted with the planned units: {whole}"]
    if prediction.samples_per_s is None:
        why = "the plan does not say what its stages take" if planned.problem is None else "units here are smaller"
        return [*lines, f"predicted with those here: not known, {why}"]
    how = "" if prediction.is_modelled else ", if each unit does its part: no problem file lies beside the plan"
    return [*lines, f"predicted with those here: {format_plain(prediction.samples_per_s)} samples/s{how}"]


def _in_sync(planned: PlannedRun) -> list[str]:
    """Return in words what steps in `sync` make of that."""
    from dovetail.runtime.planned.from_plan import in_sync
    from dovetail.units import format_plain

    samples_per_s = in_sync(planned.prediction, planned.plan, planned.stages, planned.run)
    if samples_per_s is None:
        return []
    return [f"in sync, where each step fills the stages and drains them: {format_plain(samples_per_s)} samples/s"]
