"""How batch norms are trained: over the whole batch of a step, or each worker by its own part."""

from __future__ import annotations

import msgspec
import torch

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.parameters import batch_norms_of, dense_parameters, norms_of
from dovetail.spec.run import BatchNorm, Run, RunTraining

OWN = 'training.batch_norm = "own" normalises by each worker\'s part of a batch'


def with_norms(run: Run, model: Model) -> Run:
    """Return a run that says how the model's batch norms are trained; refuse what cannot be.

    Pieces of a tail would be too small to normalise by, and nobody waits for them: a model with norms has none.
    """
    modes = {module: module.training for module in model.modules()}
    model.train()  # as workers have it: a model may keep some of its norms out of that
    try:
        return _decided(run, model)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _decided(run: Run, model: Model) -> Run:
    """Return a run that says how the norms of a model in training are trained."""
    training, layers = run.training, batch_norms_of(model)
    if not layers and not norms_of(model):
        return _with(run, training, None)
    asked, problem = training.batch_norm, _why_not_global(run, model)
    if layers and asked != "own" and run.table.place == "sharded" and len(run.each_worker()) > 1:
        raise TrainingError(
            'the model has batch norms over whole batches, and table.place is "sharded": workers have parts of them',
            hint=f'{OWN}; or set table.place = "servers"',
        )
    if asked == "global" and layers and problem is not None:
        raise problem
    if training.tail is None:
        training = msgspec.structs.replace(training, tail=0.0)
    return _with(run, training, "own" if asked == "own" or not layers or problem is not None else "global")


def _with(run: Run, training: RunTraining, batch_norm: BatchNorm | None) -> Run:
    return msgspec.structs.replace(run, training=msgspec.structs.replace(training, batch_norm=batch_norm))


def _why_not_global(run: Run, model: Model) -> TrainingError | None:
    """Return why there are no norms over the whole batch, or None where there can be."""
    training = run.training
    if training.mode != "sync":
        return TrainingError(
            f'training.batch_norm is "global", and mode is "{training.mode}", where every task is a step of its own',
            hint=f'set mode = "sync", or {OWN}',
        )
    if training.accumulate > 1:
        return TrainingError(
            f'training.batch_norm is "global", and a step accumulates {training.accumulate} batches',
            hint=f"set batch to what a step is to have, and accumulate = 1; or {OWN}",
        )
    if training.tail:
        return TrainingError(
            f'training.batch_norm is "global", which waits for all of a batch at once, and tail is {training.tail:g}',
            hint=f"leave tail away; or {OWN}",
        )
    layers = batch_norms_of(model)
    if strange := [norm for norm in norms_of(model) if norm.training and norm not in layers]:
        return TrainingError(
            f'training.batch_norm is "global", and a {type(strange[0]).__name__} keeps running statistics of parts',
            hint=f"build it with track_running_stats=False; or {OWN}",
        )
    is_half = any(parameter.dtype == torch.float16 for _, parameter in dense_parameters(model))
    if is_half or any(worker.precision == "float16" for worker in run.workers):
        return TrainingError(
            'training.batch_norm is "global", and float16 may need several passes back where such norms take one',
            hint=f"take bfloat16; or {OWN}",
        )
    return None
