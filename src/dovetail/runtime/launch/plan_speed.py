"""How fast a plan should be with the units that it has here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.cost import evaluate
from dovetail.cost.sync_step import StageShare, sync_step_seconds
from dovetail.runtime.launch.from_plan import PlacedStage
from dovetail.spec.plan import Plan
from dovetail.spec.problem import Problem
from dovetail.spec.run import Run


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
    if any(stage.size != stage.unit.size for stage in stages):  # units smaller than those that were priced
        return Prediction(
            planned_samples_per_s=planned, samples_per_s=None, stage_seconds=nothing, is_modelled=problem is not None
        )
    if problem is not None:
        here = evaluate(problem, [stage.as_stage() for stage in stages], split_stages=True)
        return Prediction(
            planned_samples_per_s=evaluate(problem, plan.stages, split_stages=True).samples_per_s,
            samples_per_s=here.samples_per_s,
            stage_seconds=here.stage_seconds,
            is_modelled=True,
        )
    seconds = [
        None if stage.seconds_per_batch is None else stage.seconds_per_batch * stage.planned / stage.units
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

    Every worker of the first stage cuts its part of a batch into micro-batches.
    """
    seconds = [each for each in prediction.stage_seconds if each is not None]
    batch = run.training.batch or plan.batch
    if run.training.mode != "sync" or len(stages) < 2 or len(seconds) < len(stages) or batch is None:
        return None
    readers = stages[0].workers
    micro_batches = readers * math.ceil(batch / readers / run.training.micro_batch)
    shares = [StageShare(seconds=each, workers=stage.workers) for each, stage in zip(seconds, stages, strict=True)]
    return batch / sync_step_seconds(shares, micro_batches=micro_batches)
