"""From a plan to the workers of a run: what its units are on this machine, and how fast they should be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.catalogue import read_problem_with, users_catalogue
from dovetail.cost import evaluate, stage_memory
from dovetail.cost.pipeline import sync_step_seconds
from dovetail.cost.plan import evaluate_plan
from dovetail.errors import DovetailError, PlanError
from dovetail.machine import cores as usable_cores
from dovetail.machine import memory as usable_memory
from dovetail.runtime.planned.layouts import (
    in_one_process,
    over_servers,
    over_workers,
    rows_on_gpu,
    with_memory_for_rows,
)
from dovetail.runtime.planned.units import PlanUnit, units_of
from dovetail.runtime.prepare.devices import gpu_bytes, num_gpus
from dovetail.spec.files import read_struct
from dovetail.spec.layer import Layer
from dovetail.spec.plan import Plan, Stage
from dovetail.spec.problem import Problem
from dovetail.spec.run import Dense, Run, RunWorker
from dovetail.spec.run_sections import RunStage
from dovetail.units import format_bytes

Tell = Callable[[str], None]
"""Is told what a user should know, in words."""


def quietly(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to run on: cores, and GPUs; where their memory is not known it is not looked at."""

    cores: int
    gpus: int
    memory_bytes: float | None = None
    gpu_memory_bytes: float | None = None
    """Of the smallest."""
    called: str = "this machine has"
    """In messages: it may be several."""
    is_elsewhere: bool = False
    """Whether it is other hosts than this one."""

    @classmethod
    def this(cls) -> Machine:
        """Return this one; cores and memory are those that this process may use, whatever holds it to them."""
        return cls(
            cores=max(1, int(usable_cores().num_usable)),
            gpus=num_gpus(),
            memory_bytes=float(usable_memory().usable_bytes),
            gpu_memory_bytes=gpu_bytes(),
        )

    def has(self, *, gpu: bool) -> int:
        """Return how many GPUs, or cores."""
        return self.gpus if gpu else self.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A stage as it was planned, and how many of its units run here."""

    planned: Stage
    units: int
    unit: PlanUnit
    size: int
    """Cores or GPUs of a unit here: less than planned where even one is more than there is."""

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on GPUs."""
        return self.unit.on_gpu

    @property
    def workers(self) -> int:
        """How many there are of it: one for each GPU, and one for all cores of a unit."""
        return self.units * self.size if self.on_gpu else self.units

    @property
    def is_as_planned(self) -> bool:
        """Whether it has all of its units."""
        return self.units == self.planned.units and self.size == self.unit.size

    @property
    def here(self) -> Stage:
        """The stage with the units that it has here; what was planned of rows and seconds is left out."""
        planned = self.planned
        return Stage(
            resource=planned.resource,
            first_layer=planned.first_layer,
            last_layer=planned.last_layer,
            units=self.units,
        )


def place(
    stages: Sequence[Stage], machine: Machine, *, scale: bool = False, units: Mapping[str, PlanUnit] | None = None
) -> list[PlacedStage]:
    """Return where each stage of a plan runs; `units` says what a unit of a type is, where the stage does not tell.

    What does not fit is refused; with `scale` every stage gets its part of what there is, and at least one unit.
    """
    units = units_of(stages) if units is None else units
    wanted = {True: 0, False: 0}
    for stage in stages:
        unit = units[stage.resource]
        wanted[unit.on_gpu] += stage.units * unit.size
    has = {gpu: machine.has(gpu=gpu) for gpu in wanted}
    if wanted[True] and not machine.gpus:
        named = sorted({f"`{stage.resource}`" for stage in stages if units[stage.resource].on_gpu})
        raise PlanError(
            f"the plan needs {_counted(wanted)}, {', '.join(named)} among them, and {machine.called} "
            f"{_counted(has)} that PyTorch can use",
            hint="plan for what is here: dovetail profile measures the types at hand",
        )
    if not scale and any(wanted[kind] > has[kind] for kind in wanted):
        raise PlanError(
            f"the plan needs {_counted(wanted)}, and {machine.called} {_counted(has)}",
            hint="--scale runs it in proportion with what there is",
        )
    return [_placed(stage, units[stage.resource], wanted, has) for stage in stages]


def _placed(stage: Stage, unit: PlanUnit, wanted: Mapping[bool, int], has: Mapping[bool, int]) -> PlacedStage:
    """Return a stage with its part of what there is."""
    fits = wanted[unit.on_gpu] <= has[unit.on_gpu]
    return PlacedStage(
        planned=stage,
        units=stage.units if fits else max(1, stage.units * has[unit.on_gpu] // wanted[unit.on_gpu]),
        unit=unit,
        size=min(unit.size, has[unit.on_gpu]),
    )


def _counted(units: Mapping[bool, int]) -> str:
    """Return so many cores and GPUs in words."""
    return f"{units[False]} cores and {units[True]} GPUs"


def check_memory(problem: Problem, stages: Sequence[PlacedStage], machine: Machine) -> None:
    """Refuse stages whose dense parameters, with gradients and optimizer state, do not fit into memory here.

    Rows of tables are not among it: servers keep them, and on disk where they are too many.
    """
    hosts_bytes = 0.0
    for number, stage in enumerate(stages):
        first, last = stage.planned.first_layer, stage.planned.last_layer
        layers = [layer for layer in problem.layers[first : last + 1] if layer.kind != "embedding"]
        memory = stage_memory(layers, units=1)
        needed = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes
        if not stage.on_gpu:
            hosts_bytes += needed * stage.units
        elif machine.gpu_memory_bytes is not None and needed > machine.gpu_memory_bytes:
            raise PlanError(
                f"stage {number} holds {format_bytes(needed)} of parameters, gradients and optimizer state on each "
                f"GPU, and one here has {format_bytes(machine.gpu_memory_bytes)}",
                hint="plan with memory_bytes of this GPU in the problem file, so that the stage is cut",
            )
    if machine.memory_bytes is not None and hosts_bytes > machine.memory_bytes:
        raise PlanError(
            f"the workers on cores would hold {format_bytes(hosts_bytes)} of parameters, gradients and optimizer "
            f"state, and {machine.called} {format_bytes(machine.memory_bytes)}",
            hint="plan with fewer units: every worker of a stage holds all dense parameters of its layers",
        )


def planned_run(
    run: Run,
    stages: Sequence[PlacedStage],
    machine: Machine,
    batch: int | None,
    *,
    dense: Dense | None = None,
    plan: Plan | None = None,
    layers: Sequence[Layer] = (),
) -> Run:
    """Return a run with what a plan has: who trains, where rows lie, servers, readers; and its batch where it has none.

    A `plan` that says where rows lie is taken at its word: one process with all of them, workers that own them, or
    servers. Any other has servers, as the run has them, and a worker for every unit of every stage; but one GPU that
    keeps some rows is one process. `layers` tell what rows take on a GPU.

    The GPUs are taken in turn, one for each worker; a CPU worker has a thread for each core of its unit. Without
    `dense`, the workers of each stage keep its dense parameters in a ring where there are several stages and steps are
    in `sync`: then no gradient of theirs leaves the stage. Otherwise the run's own choice stands.
    """
    run = msgspec.structs.replace(
        run, training=msgspec.structs.replace(run.training, plan=None, batch=run.training.batch or batch)
    )
    place = None if plan is None else plan.place
    readers = None if plan is None else plan.readers
    if plan is not None and place is not None:
        processes = {"local": 1, "sharded": sum(stage.workers for stage in stages)}.get(place, plan.servers or 1)
        run = with_memory_for_rows(run, layers, machine.memory_bytes, processes=processes)
    if place == "local" or keeps_rows_on_gpu(stages):
        return _one_process(run, stages[0], machine, readers, layers)
    workers = _workers(stages, machine)
    if place == "sharded":
        return over_workers(run, workers, readers=readers)
    cut = [
        RunStage(first_layer=each.first_layer, last_layer=each.last_layer, resource=each.resource)
        for each in (stage.planned for stage in stages)
    ]
    if dense is None and len(stages) > 1 and run.training.mode == "sync":
        dense = "ring"
    run = over_servers(
        run.with_servers(),
        workers,
        servers=None if plan is None else plan.servers,
        readers=readers,
        stages=cut,
    )
    return msgspec.structs.replace(
        run, training=msgspec.structs.replace(run.training, dense=dense or run.training.dense)
    )


def _one_process(run: Run, stage: PlacedStage, machine: Machine, readers: int | None, layers: Sequence[Layer]) -> Run:
    """Return a run in one process on a stage's unit; on a CPU its units are threads."""
    if not stage.on_gpu:
        return in_one_process(run, device="cpu", threads=stage.units * stage.size, readers=readers)
    if stage.planned.row_budgets:
        budgets = {name: math.ceil(held_bytes) for name, held_bytes in stage.planned.row_budgets.items()}
        return in_one_process(
            run, device="cuda", readers=readers, device_bytes=sum(budgets.values()), layer_bytes=budgets
        )
    rows_bytes = rows_on_gpu(layers, machine.gpu_memory_bytes, least=run.table.device_bytes)
    return in_one_process(run, device="cuda", readers=readers, device_bytes=rows_bytes)


def _workers(stages: Sequence[PlacedStage], machine: Machine) -> list[RunWorker]:
    """Return a worker for every unit of every stage."""
    workers, next_gpu = [], 0
    for number, stage in enumerate(stages):
        name = f"stage-{number}-{'gpu' if stage.on_gpu else 'cpu'}"
        if not stage.on_gpu:
            workers.append(RunWorker(name=name, count=stage.units, threads=stage.size, stage=number))
            continue
        for unit in range(stage.workers):
            device = f"cuda:{next_gpu % max(1, machine.gpus)}"
            workers.append(RunWorker(name=f"{name}-{unit}", device=device, stage=number))
            next_gpu += 1
    return workers


def layout_in_words(planned: PlannedRun) -> str:
    """Return who trains and where rows lie: `one process on gpu`, `2 servers; stage 0: 4 x cpu`."""
    plan, stages = planned.plan, planned.stages
    if plan.place == "local" or keeps_rows_on_gpu(stages):
        cores = stages[0].units * stages[0].size
        return f"one process on {stages[0].planned.resource}" + (f", {cores} threads" if not stages[0].on_gpu else "")
    if plan.place == "sharded":
        return f"{stages[0].workers} workers on {stages[0].planned.resource} that own the rows"
    servers = planned.run.servers.count
    units = "; ".join(
        f"stage {number}: {stage.units} x {stage.planned.resource}" for number, stage in enumerate(stages)
    )
    return f"{servers} server{'s' * (servers != 1)}; {units}"


def keeps_rows_on_gpu(stages: Sequence[PlacedStage]) -> bool:
    """Say whether a plan is one GPU that keeps some rows of its embeddings."""
    return len(stages) == 1 and stages[0].on_gpu and stages[0].workers == 1 and bool(stages[0].planned.row_budgets)


def dense_of(plan: Plan) -> Dense | None:
    """Return where a plan has dense parameters, where it says so."""
    return next((stage.dense for stage in plan.stages if stage.dense is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Samples/s with all planned units and with those here, and the seconds of each stage for a batch here.

    What is not known is None. `is_modelled` is False where units were taken to be worth the same each, for want of the
    problem that the plan was made for.
    """

    planned_samples_per_s: float
    samples_per_s: float | None
    stage_seconds: tuple[float | None, ...]
    is_modelled: bool


def predict(plan: Plan, stages: Sequence[PlacedStage], problem: Problem | None) -> Prediction:
    """Return what the cost model says of a plan with these units, or what the plan says where there is no problem."""
    nothing: tuple[float | None, ...] = (None,) * len(stages)
    planned = plan.samples_per_s
    if plan.place is not None and all(stage.is_as_planned for stage in stages):
        parts = {part.part: part.seconds_per_batch for part in plan.parts}
        seconds = [parts.get(f"stage {number}", stage.planned.seconds_per_batch) for number, stage in enumerate(stages)]
        return Prediction(
            planned_samples_per_s=planned, samples_per_s=planned, stage_seconds=tuple(seconds), is_modelled=True
        )
    if any(stage.size != stage.unit.size for stage in stages):  # units smaller than those that were priced
        return Prediction(
            planned_samples_per_s=planned, samples_per_s=None, stage_seconds=nothing, is_modelled=problem is not None
        )
    if problem is not None:
        here = evaluate_plan(
            problem, msgspec.structs.replace(plan, stages=tuple(stage.here for stage in stages)), split_stages=True
        )
        return Prediction(
            planned_samples_per_s=evaluate_plan(problem, plan, split_stages=True).samples_per_s,
            samples_per_s=here.samples_per_s,
            stage_seconds=here.stage_seconds,
            is_modelled=True,
        )
    seconds = [
        None
        if stage.planned.seconds_per_batch is None
        else stage.planned.seconds_per_batch * stage.planned.units / stage.units
        for stage in stages
    ]
    known = [each for each in seconds if each is not None]
    samples_per_s: float | None = None
    if all(stage.is_as_planned for stage in stages):
        samples_per_s = planned
    elif plan.batch is not None and len(known) == len(seconds) and max(known) > 0:
        samples_per_s = plan.batch / max(known)
    return Prediction(
        planned_samples_per_s=planned, samples_per_s=samples_per_s, stage_seconds=tuple(seconds), is_modelled=False
    )


def in_sync(prediction: Prediction, plan: Plan, stages: Sequence[PlacedStage], run: Run) -> float | None:
    """Return the samples/s of a run in `sync`, whose steps fill several stages and drain them; None where not known.

    Every worker of the first stage cuts its part of a batch into micro-batches. A plan that says where rows lie has
    counted that already.
    """
    seconds = [each for each in prediction.stage_seconds if each is not None]
    batch = run.training.batch or plan.batch
    if (
        plan.place is not None
        or run.training.mode != "sync"
        or len(stages) < 2
        or len(seconds) < len(stages)
        or batch is None
    ):
        return None
    readers = stages[0].workers
    micro_batches = readers * math.ceil(batch / readers / run.training.micro_batch)
    workers = [stage.workers for stage in stages]
    return batch / sync_step_seconds(seconds, workers, micro_batches=micro_batches)


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
    scale: bool = False,
    problem_file: Path | None = None,
    dense: Dense | None = None,
    machine: Machine | None = None,
    tell: Tell = quietly,
) -> PlannedRun:
    """Return a run with the workers and stages of a plan file; without a machine, on this one."""
    plan = read_struct(plan_file, Plan)
    problem = problem_of(plan, plan_file, problem_file, tell=tell)
    return placed(run, plan, problem, machine or Machine.this(), scale=scale, dense=dense, tell=tell)


def placed(
    run: Run,
    plan: Plan,
    problem: Problem | None,
    machine: Machine,
    *,
    scale: bool = False,
    dense: Dense | None = None,
    tell: Tell = quietly,
) -> PlannedRun:
    """Return a run with the workers and stages of a plan; refuse what does not fit here.

    Without `dense`, other hosts have dense parameters on servers, whatever the plan says: a ring across hosts needs a
    word of trust.
    """
    units = units_of(plan.stages, problem, users_catalogue())
    stages = place(plan.stages, machine, scale=scale, units=units)
    _check_place(plan, stages, machine, scale=scale)
    if problem is not None:
        check_memory(problem, stages, machine)
    if any(stage.planned.row_budgets for stage in stages) and not keeps_rows_on_gpu(stages):
        tell("rows are kept by servers: a plan of several workers has no rows on GPUs yet, and is slower than planned")
    dense = dense or ("ps" if machine.is_elsewhere else dense_of(plan))
    return PlannedRun(
        run=planned_run(
            run, stages, machine, plan.batch, dense=dense, plan=plan, layers=() if problem is None else problem.layers
        ),
        before=run,
        plan=plan,
        problem=problem,
        stages=stages,
        units=units,
        machine=machine,
        prediction=predict(plan, stages, problem),
        dense=dense,
    )


def _check_place(plan: Plan, stages: Sequence[PlacedStage], machine: Machine, *, scale: bool) -> None:
    """Refuse a plan whose servers and readers have no cores here, and what one process or sharded workers cannot be."""
    if plan.place in ("local", "sharded"):
        if len(stages) != 1:
            raise PlanError(
                f'the plan has place = "{plan.place}" and {len(stages)} stages',
                hint='only servers keep rows for several stages: place = "servers"',
            )
        if machine.is_elsewhere:
            raise PlanError(
                f'the plan has place = "{plan.place}", and {machine.called} several hosts',
                hint="leave --on away, or plan for those hosts: dovetail run --on",
            )
    if plan.place == "local" and stages[0].workers > 1 and stages[0].on_gpu:
        raise PlanError(
            f'the plan has place = "local" and {stages[0].workers} GPUs', hint="one process has one of them: plan again"
        )
    if plan.cores is not None and plan.cores > machine.cores and not machine.is_elsewhere and not scale:
        raise PlanError(
            f"the plan takes {plan.cores} cores with its servers and readers, and {machine.called} {machine.cores}",
            hint="plan for what is here: dovetail profile measures it; --scale runs it with fewer workers",
        )


def problem_of(plan: Plan, plan_file: Path, problem_file: Path | None, *, tell: Tell = quietly) -> Problem | None:
    """Return the problem that a plan was made for: the one that is named, or one in the plan's folder that fits it."""
    if problem_file is not None:
        problem = read_problem_with(users_catalogue(), problem_file, spot=plan.spot)
        _check_fits(plan, problem, problem_file)
        return problem
    for path in (plan_file.parent / name for name in BESIDE):
        if not path.is_file():
            continue
        try:
            problem = read_problem_with(users_catalogue(), path, spot=plan.spot)
            _check_fits(plan, problem, path)
        except DovetailError as error:
            tell(f"{path} is not looked at: {error}")
            continue
        return problem
    return None


def _check_fits(plan: Plan, problem: Problem, path: Path) -> None:
    """Refuse a problem of other layers or types than the plan's."""
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


def with_plan_of(
    run: Run, folder: Path, *, dense: Dense | None = None, machine: Machine | None = None, tell: Tell = quietly
) -> Run:
    """Return a run with the workers and stages of the plan that it names, from that folder, where it names one."""
    if run.training.plan is None:
        return run
    return run_as_planned(run, folder / run.training.plan, dense=dense, machine=machine, tell=tell).run
