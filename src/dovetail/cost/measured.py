"""A problem whose times are those that a run's stages really took.

A run knows its stages, not their layers. A stage of layers `l` that computed for `busy` seconds over all of its
workers, for n samples, takes a batch of B samples in

    measured = busy / n * B / workers

and the model says compute(k) = sum_l c_l (1 - a_l + a_l / k) for its k units. Every c_l of the stage is multiplied by
measured / compute(k): then the model says of this stage what was measured, and the layers keep their weights among each
other. Where the model says 0, they get equal ones. Traffic, links and other types stay as they were.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.cost.stage import amdahl_seconds, compute_seconds
from dovetail.spec import Layer, LayerTime, Plan, Problem, ResourceType, Stage, Training


def measured_stage(stage: Stage, *, batch: int, workers: int, samples: int, busy_s: float) -> Stage:
    """Return a stage with what it took for a batch, of `busy_s` over all workers; None where nothing was measured."""
    is_measured = samples > 0 and busy_s > 0
    measured_s = busy_s / samples * batch / max(1, workers) if is_measured else None
    return msgspec.structs.replace(stage, seconds_per_batch=measured_s)


def modelled_seconds(problem: Problem, stage: Stage) -> float:
    """Return the seconds of computation that the model expects of a stage for one batch."""
    layers = problem.layers[stage.first_layer : stage.last_layer + 1]
    return compute_seconds([layer.on[stage.resource] for layer in layers], units=stage.units)


def measured_problem(problem: Problem, measured: Sequence[Stage]) -> Problem:
    """Return the problem with the layers of each stage scaled to what the stage took."""
    layers = list(problem.layers)
    for stage in measured:
        measured_s = stage.seconds_per_batch
        if measured_s is None:
            continue
        modelled_s = modelled_seconds(problem, stage)
        share_s = measured_s / (stage.last_layer - stage.first_layer + 1)
        for position in range(stage.first_layer, stage.last_layer + 1):
            layer = layers[position]
            before = layer.on[stage.resource]
            if modelled_s > 0:
                seconds = before.compute_s * measured_s / modelled_s
            else:
                seconds = share_s / amdahl_seconds(1.0, parallel=before.compute_parallel, units=stage.units)
            now = msgspec.structs.replace(before, compute_s=seconds, source="measured", error=None)
            layers[position] = msgspec.structs.replace(layer, on={**layer.on, stage.resource: now})
    return msgspec.structs.replace(problem, layers=tuple(layers))


def bare_problem(plan: Plan, resources: Sequence[ResourceType], training: Training) -> Problem:
    """Return a problem from what a plan alone says: each layer on its own type, all layers of a stage alike.

    Units are taken to share a stage's work fully, and nothing is known of what crosses cuts.
    """
    layers = []
    for stage in plan.stages:
        count = stage.last_layer - stage.first_layer + 1
        stage_s = stage.seconds_per_batch
        if stage_s is None:
            stage_s = training.batch / plan.samples_per_s if plan.samples_per_s > 0 else 0.0
        time = LayerTime(compute_s=stage_s * stage.units / count, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
        names = stage.layers or tuple(f"layer-{stage.first_layer + each}" for each in range(count))
        layers += [Layer(name=name, on={stage.resource: time}) for name in names]
    return Problem(training=training, resources=tuple(resources), layers=tuple(layers))
