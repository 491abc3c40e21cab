"""From a model to a result in one call: profiled, planned, trained as planned, and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.orchestrate.beside import MOST_S
from dovetail.orchestrate.choosing import chosen_by, planned_for
from dovetail.orchestrate.hosts import profiled_on
from dovetail.orchestrate.measured import keep_plan
from dovetail.orchestrate.parts import measured_parts, part_table
from dovetail.orchestrate.profiling import profiled_here
from dovetail.orchestrate.replanning import Replanner, ReplanRule, train_planned
from dovetail.orchestrate.run_files import lock_free_folder, model_run
from dovetail.planner.demands import Demands
from dovetail.runtime.finished.result import TrainingResult
from dovetail.runtime.launch.hosts.fleet import Fleet, fleet_of
from dovetail.runtime.launch.start import start
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.runtime.planned.from_plan import Machine, PlannedRun, Tell, layout_in_words, placed, quietly
from dovetail.runtime.prepare.lock import RunLock
from dovetail.runtime.prepare.main_guard import leave_when_imported
from dovetail.spec import Plan, Problem
from dovetail.spec.run import Dense, Run

PLANNING_S = 10.0
"""For the plan of a run: the best one by then is run, proven or not."""

TrainOnce = Callable[[Run, RunLock, bool, Replanner | None], TrainingResult]
"""Takes a run to its end in a locked folder, given whether it goes on and who may stop it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunComparison:
    """What was predicted of a model, and what came of it."""

    problem: Problem
    """As it was measured before the run."""
    planned: PlannedRun
    """As it ran last."""
    result: TrainingResult
    replans: Sequence[dict[str, Any]]

    @property
    def measured_samples_per_s(self) -> float:
        """How fast it went once it went steadily; over all of it where it was too short to know."""
        return self.result.steady_samples_per_s or self.result.samples_per_s

    def __repr__(self) -> str:
        """Return what was predicted beside what came of it, and what may be done next."""
        predicted, measured = self.planned.plan.samples_per_s, self.measured_samples_per_s
        return (
            f"<RunComparison of {self.result.folder}: {predicted:,.0f} samples/s predicted, {measured:,.0f} measured "
            f"({measured / predicted:.2f}x)\n next: .result, .planned.plan, .facts()>"
        )

    def facts(self) -> dict[str, Any]:
        """Return what was predicted beside what was measured, of the plan that the run ended with, in plain values."""
        plan, batch = self.planned.plan, self.problem.training.batch
        measured = measured_parts(self.planned, self.result, batch)
        stages = [
            {
                "resource": stage.planned.resource,
                "first_layer": stage.planned.first_layer,
                "last_layer": stage.planned.last_layer,
                "units": stage.units,
                "predicted_seconds_per_batch": stage.planned.seconds_per_batch,
                "measured_seconds_per_batch": seconds,
            }
            for stage, seconds in zip(self.planned.stages, measured.stages, strict=True)
        ]
        return {
            "folder": str(self.result.folder),
            "layout": layout_in_words(self.planned),
            "predicted_seconds_per_batch": batch / plan.samples_per_s,
            "measured_seconds_per_batch": batch / self.measured_samples_per_s if self.measured_samples_per_s else None,
            "predicted_samples_per_s": plan.samples_per_s,
            "measured_samples_per_s": self.measured_samples_per_s,
            "samples_per_s_from_the_start": self.result.samples_per_s,
            "cost_per_hour": plan.cost_per_hour,
            "samples": self.result.samples,
            "loss": self.result.loss,
            "place": plan.place,
            "servers": plan.servers,
            "readers": plan.readers,
            "cores": plan.cores,
            "stages": stages,
            "parts": part_table(self.planned, measured),
            "compared": compared(plan),
            "replans": self.replans,
        }


def compared(plan: Plan) -> list[dict[str, Any]]:
    """Return the plain layouts that were compared with a plan, and how fast and dear they would be beside it."""
    return [
        {
            "layout": each.layout,
            "samples_per_s": each.samples_per_s,
            "cost_per_hour": each.cost_per_hour,
            "speed": each.samples_per_s / plan.samples_per_s if plan.samples_per_s > 0 else None,
            "price": each.cost_per_hour / plan.cost_per_hour if plan.cost_per_hour > 0 else None,
        }
        for each in plan.compared
    ]


def run(
    model: str,
    data: str = "clicks",
    *,
    folder: str | Path | None = None,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    samples: int = 200_000,
    batch: int = 4096,
    seed: int = 0,
    min_samples_per_s: float = 0.0,
    max_cost_per_hour: float | None = None,
    usd_per_hour: Mapping[str, float] | None = None,
    short_runs_s: float = MOST_S,
    max_stages: int | None = None,
    split_stages: bool = False,
    dense: Dense | None = None,
    replan: ReplanRule | None = None,
    on: str | Path | Fleet | None = None,
    timeline: bool = False,
    callbacks: Sequence[Callback] = (),
    tell: Tell = quietly,
    show: Callable[[PlannedRun], None] = lambda _: None,
    train: TrainOnce | None = None,
) -> RunComparison:
    """Measure a model on this machine, plan it, train it as planned, and compare what was predicted with what was.

    The same as `dovetail run`. With `on`, what `--on` takes, the model is measured on one host of each type, and
    planned for and trained on all of them. The plan is the fastest that this machine can run, or the cheapest of
    `min_samples_per_s`, or the fastest for `max_cost_per_hour`; `usd_per_hour` says what a unit of a type costs.
    `short_runs_s` is how long short runs may measure what runs beside layers; 0: not at all. `replan` says when the run
    moves to another plan. Problem, plan and the run are kept in `folder` (absent: runs/MODEL-N). `show` is given each
    plan before it runs, `tell` what is done in words, and `train` may take the place of how a run is taken to its end.
    """
    leave_when_imported()
    with ExitStack() as things:
        fleet = on if on is None or isinstance(on, Fleet) else things.enter_context(fleet_of(str(on)))
        machine = Machine.this() if fleet is None else fleet.machine
        chosen = model_run(
            model,
            model_options=dict(model_options or {}),
            data=data,
            data_options=dict(data_options or {}),
            samples=samples,
            batch=batch,
            seed=seed,
        )
        demands = Demands(
            max_cost_per_hour=max_cost_per_hour,
            max_stages=max_stages,
            split_stages=split_stages,
            time_limit_s=PLANNING_S,
        )
        if fleet is None:
            problem = profiled_here(
                chosen,
                machine,
                usd_per_hour=usd_per_hour,
                min_samples_per_s=min_samples_per_s,
                short_runs_s=short_runs_s,
                demands=demands,
                tell=tell,
            )
        else:
            chosen = fleet.settled(chosen)
            problem = profiled_on(
                fleet,
                chosen,
                usd_per_hour=usd_per_hour,
                min_samples_per_s=min_samples_per_s,
                short_runs_s=short_runs_s,
                tell=tell,
            )
        plan = planned_for(problem, demands, tell=tell)
        planned = placed(chosen, plan, problem, machine, dense=dense, tell=tell)
        show(planned)
        lock = things.enter_context(RunLock(Path(folder)) if folder is not None else lock_free_folder(chosen))

        def train_once(run: Run, resumed: bool, replanner: Replanner | None) -> TrainingResult:
            if train is not None:
                return train(run, lock, resumed, replanner)
            told = [*callbacks, *([] if replanner is None else [replanner])]
            return start(
                run, lock.folder, resumed=resumed, timeline=timeline, callbacks=told, lock=lock, fleet=fleet, tell=tell
            )

        found = train_planned(
            planned, lock.folder, train_once, rule=replan, choose=chosen_by(demands), show=show, tell=tell
        )
        keep_plan(plan, problem, lock.folder)
        return RunComparison(problem=problem, planned=found.planned, result=found.result, replans=found.replans)
