"""A run as a plan says: what its units are on this machine is shown before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import say

if TYPE_CHECKING:
    from dovetail.runtime.launch.from_plan import Machine, PlacedStage
    from dovetail.spec import Plan
    from dovetail.spec.run import Run


def run_as_planned(run: Run, plan_file: Path, *, scale: bool) -> Run:
    """Return a run with the workers and stages of a plan."""
    from dovetail.runtime.launch.from_plan import Machine, place, planned_run
    from dovetail.spec import Plan
    from dovetail.spec.files import read_struct

    plan, machine = read_struct(plan_file, Plan), Machine.this()
    stages = place(plan, machine, scale=scale)
    show_places(plan, stages, machine)
    return planned_run(run, stages, machine, plan.batch)


def show_places(plan: Plan, stages: Sequence[PlacedStage], machine: Machine) -> None:
    """Say what each stage runs on here, and how fast that should be."""
    from dovetail.units import format_plain

    say(f"this machine has {machine.cores} core{'s' * (machine.cores != 1)} and {machine.gpus} GPUs; the plan:")
    for number, stage in enumerate(stages):
        unit = "GPU" if stage.on_gpu else "core"
        less = f" of {stage.planned} planned" if stage.units != stage.planned else ""
        say(
            f"  stage {number}: layers {stage.first_layer} to {stage.last_layer} on {stage.units} "
            f"{unit}{'s' * (stage.units != 1)}{less} ({stage.resource})"
        )
    if all(stage.units == stage.planned for stage in stages):
        say(f"  predicted: {format_plain(plan.samples_per_s)} samples/s")
    else:
        say(f"  predicted with all planned units: {format_plain(plan.samples_per_s)} samples/s")
