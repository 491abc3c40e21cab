"""From a plan to the workers of a run: what the units of its stages are on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dovetail.errors import PlanError
from dovetail.runtime.launch.devices import num_gpus
from dovetail.spec.plan import Plan
from dovetail.spec.run import Run, RunWorker
from dovetail.spec.run_stage import RunStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to run on: cores, and GPUs."""

    cores: int
    gpus: int

    @classmethod
    def this(cls) -> Machine:
        """Return this one; cores are those that this process may use."""
        return cls(cores=len(os.sched_getaffinity(0)), gpus=num_gpus())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A stage of a plan, and how many of its units run here."""

    first_layer: int
    last_layer: int
    resource: str
    planned: int
    units: int
    on_gpu: bool
    seconds_per_batch: float | None = None
    """What the plan says that it takes, with the planned units."""


def is_gpu(resource: str) -> bool:
    """Say whether a type of a plan is run on a GPU here: all but those that are called after CPUs."""
    return "cpu" not in resource.lower()


def place(plan: Plan, machine: Machine, *, scale: bool = False) -> list[PlacedStage]:
    """Return where each stage runs: a unit of a CPU type is a core, any other a GPU.

    What does not fit is refused; with `scale` every stage gets its part of what there is, and at least one unit.
    """
    wanted = {True: 0, False: 0}
    for stage in plan.stages:
        wanted[is_gpu(stage.resource)] += stage.units
    has = {True: machine.gpus, False: machine.cores}
    if wanted[True] and not machine.gpus:
        raise PlanError(
            f"the plan needs {_counted(wanted)}, {_named(plan, gpu=True)} among them, and this machine has "
            f"{_counted(has)} that PyTorch can use",
            hint="plan for what is here: dovetail profile measures the types at hand",
        )
    if not scale and any(wanted[kind] > has[kind] for kind in wanted):
        raise PlanError(
            f"the plan needs {_counted(wanted)}, and this machine has {_counted(has)}",
            hint="--scale runs it in proportion with what there is",
        )
    return [
        PlacedStage(
            first_layer=stage.first_layer,
            last_layer=stage.last_layer,
            resource=stage.resource,
            planned=stage.units,
            units=_units(stage.units, wanted[is_gpu(stage.resource)], has[is_gpu(stage.resource)]),
            on_gpu=is_gpu(stage.resource),
            seconds_per_batch=stage.seconds_per_batch,
        )
        for stage in plan.stages
    ]


def _units(planned: int, wanted: int, has: int) -> int:
    """Return how many units a stage gets where all of its kind want `wanted`."""
    return planned if wanted <= has else max(1, planned * has // wanted)


def _counted(units: Mapping[bool, int]) -> str:
    """Return so many cores and GPUs in words."""
    return f"{units[False]} cores and {units[True]} GPUs"


def _named(plan: Plan, *, gpu: bool) -> str:
    """Return the types of one kind in a plan, by name."""
    return ", ".join(sorted({f"`{stage.resource}`" for stage in plan.stages if is_gpu(stage.resource) == gpu}))


def planned_run(run: Run, stages: Sequence[PlacedStage], machine: Machine, batch: int | None) -> Run:
    """Return a run with a worker for every unit of every stage, and the plan's batch where it has none of its own.

    The GPUs are taken in turn; a CPU worker has one thread.
    """
    workers, next_gpu = [], 0
    for number, stage in enumerate(stages):
        name = f"stage-{number}-{'gpu' if stage.on_gpu else 'cpu'}"
        if not stage.on_gpu:
            workers.append(RunWorker(name=name, count=stage.units, stage=number))
            continue
        for unit in range(stage.units):
            device = f"cuda:{next_gpu % max(1, machine.gpus)}"
            workers.append(RunWorker(name=f"{name}-{unit}", device=device, stage=number))
            next_gpu += 1
    cut = [
        RunStage(first_layer=stage.first_layer, last_layer=stage.last_layer, resource=stage.resource)
        for stage in stages
    ]
    training = run.training
    if training.batch is None and batch is not None:
        training = msgspec.structs.replace(training, batch=batch)
    return msgspec.structs.replace(run, workers=workers, stages=cut, training=training)
