"""A private run made ready: what it may not be, how much noise its steps get, and how many steps its budget lasts for.

A run that goes on as it was goes on with its stream of noise, so that steps done again come to the same. Whatever a
step's sum depends on may have changed otherwise, and then the run gets a new stream, drawn at random, and pays for all
of its steps. The same noise under two sums would show their difference.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from torch import nn

from dovetail.embedding import SGD
from dovetail.errors import DovetailError
from dovetail.privacy.accountant import noise_for, steps_within
from dovetail.privacy.keys import NOISE_KEY, SAMPLING_KEY, make_secret, read_secret
from dovetail.privacy.owed import MOST_STEPS
from dovetail.privacy.steps import PrivateSteps
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import KEYS, SPENDING
from dovetail.runtime.model.build import Model
from dovetail.runtime.sealed import checksum_of_value
from dovetail.runtime.spending import Spending
from dovetail.spec.run import Run

DRAWS = (nn.modules.dropout._DropoutNd, nn.RReLU)
"""Layers that draw numbers while they train."""


def positions_of(samples: int, batch: int) -> int:
    """Return how many positions an epoch has whose every step has a whole batch of them."""
    if batch > samples:
        raise TrainingError(
            f"training.batch is {batch:,}, and there are {samples:,} samples to draw it from",
            hint="a batch of a private run is a part of the data: lower it",
        )
    return math.ceil(samples / batch) * batch


def check_model(run: Run, built: Model) -> None:
    """Refuse layers that look at more than one sample, or that nobody can have answer the same again."""
    for name, module in built.named_modules():
        keeps = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or keeps:
            raise TrainingError(
                f"layer `{name}` is a {type(module).__name__}, and the run is private: its statistics mix samples of a "
                "batch, and are kept without noise",
                hint="use nn.LayerNorm or nn.GroupNorm in its place, or leave [privacy] out",
            )
        if not run.is_one_process and _draws(module):
            raise TrainingError(
                f"layer `{name}` is a {type(module).__name__}, which draws numbers, and the run is private: a step "
                "that workers do again after a fault would come to something else with the same noise",
                hint="leave the layer out, or train in one process, which draws the same again: name no workers and "
                "no servers",
            )


def _draws(module: nn.Module) -> bool:
    """Say whether a layer draws numbers while it trains."""
    if isinstance(module, DRAWS):
        return getattr(module, "p", 1.0) > 0.0
    return isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0.0


def check_rows(blueprint: Blueprint) -> None:
    """Refuse rows of a private run that cannot owe noise, and devices where samples are not told apart."""
    run, tables = blueprint.run, blueprint.tables
    if not run.privacy.is_private:
        return
    devices = [worker.device for worker in run.workers] + [run.table.device or "cpu"]
    if run.table.place == "device" or any(not device.startswith("cpu") for device in devices):
        raise TrainingError(
            f"the run is private, and computes on {max(devices, key=lambda name: name != 'cpu')}: gradients of single "
            "samples are told apart in host memory only",
            hint='set device = "cpu", and table.place = "local" or "servers"',
        )
    if not tables:
        return
    name = str(blueprint.row_optimizer["name"])
    if name != SGD.name:
        raise TrainingError(
            f"rows would be stepped by {name}, and the run is private: its state sees the noise of every step, also of "
            "those that touch no row, so no single draw stands for many",
            hint='set optimizer.rows = "sgd", and optimizer.rows_learning_rate, which is mostly larger',
        )
    if limited := [table.name for table in tables if table.max_norm is not None]:
        raise TrainingError(
            f"layer `{limited[0]}` has max_norm, and the run is private: noise makes all rows longer at every step, "
            "and all would have to be cut to it",
            hint="leave max_norm out",
        )
    steps = blueprint.samples * run.training.epochs // blueprint.batch
    if steps >= MOST_STEPS:
        raise TrainingError(
            f"the run has {steps:,} steps, and rows that owe noise can count to {MOST_STEPS:,}",
            hint="set a larger training.batch, or fewer epochs",
        )


def with_private_steps(
    blueprint: Blueprint, folder: Path, newest: RunManifest | None, *, tell: Callable[[str], None]
) -> Blueprint:
    """Return the blueprint with what its steps owe; `newest` is the checkpoint that it goes on from, None of a new run.

    What the run has spent so far is on disk when this returns.
    """
    privacy, before = blueprint.run.privacy, _record(blueprint, folder, newest)
    if privacy.epsilon is None or privacy.delta is None or privacy.clip is None:
        return blueprint
    is_new = not all((folder / KEYS / name).exists() for name in (NOISE_KEY, SAMPLING_KEY))
    _make_secrets(folder)
    request, step = _request(blueprint), 0 if newest is None else newest.step
    private = None if newest is None or is_new else _unchanged(folder, request, step)
    if private is None:
        private = _planned(blueprint, newest, before, request=request)
        if newest is not None and before.steps:
            tell("the run is not as it was, so its steps get new noise, which is paid for beside what was spent")
    before.reaching(private, private.first_step).write(folder)
    tell(_in_words(blueprint, private))
    return msgspec.structs.replace(blueprint, private=private)


def _record(blueprint: Blueprint, folder: Path, newest: RunManifest | None) -> Spending:
    """Return what the run has spent so far; refuse to go on where a promise would be broken, or is made too late."""
    if newest is None:
        return Spending()
    found = Spending.read(folder)
    was_private = newest.spending is not None or found is not None
    if was_private and not blueprint.run.privacy.is_private:
        raise TrainingError(
            f"{folder} is a private run, and would go on without a promise: what it has promised would not hold",
            hint="give [privacy] again, or start a new run",
        )
    if not blueprint.run.privacy.is_private:
        return Spending()
    if newest.step and not was_private:
        raise TrainingError(
            f"{folder} was not private for its first {newest.step:,} steps, and nothing makes them so",
            hint="start a new run, in another folder",
        )
    if newest.step and found is None:
        raise TrainingError(
            f"{folder / SPENDING} is missing: nobody knows what the run has spent",
            hint="restore it, or start a new run",
        )
    return (found or Spending()).joined(newest.spending or Spending())


def _make_secrets(folder: Path) -> None:
    """Have the keys of noise and samples in a run's folder."""
    (folder / KEYS).mkdir(mode=0o700, exist_ok=True)
    for name in (NOISE_KEY, SAMPLING_KEY):
        make_secret(folder / KEYS / name)
        read_secret(folder / KEYS, name)


def _request(blueprint: Blueprint) -> str:
    """Return a digest of all that the sums of a run's steps depend on; who computes how much is not among it."""
    made_by, run = Fingerprint.of(blueprint), blueprint.run
    conduct = {"batch": blueprint.batch, "reduction": run.training.reduction, "epochs": run.training.epochs}
    settings = (run.privacy, run.optimizer, run.table.place in ("local", "device"))
    parts = (made_by.model, made_by.data, made_by.order, made_by.optimizer, made_by.row_optimizer)
    return checksum_of_value(msgspec.to_builtins([*parts, *settings, conduct, blueprint.population]))


def _unchanged(folder: Path, request: str, step: int) -> PrivateSteps | None:
    """Return what the steps of the run owed so far, where all they depend on is as it was."""
    before: PrivateSteps | None = None
    with suppress(DovetailError):  # a damaged blueprint says nothing
        before = Blueprint.read(folder).private
    if before is None or before.request != request:
        return None
    return before if before.first_step <= step else None  # those before it were done under another stream


def _planned(blueprint: Blueprint, newest: RunManifest | None, before: Spending, *, request: str) -> PrivateSteps:
    """Return steps with as much noise as the budget needs, or as many as it lasts for."""
    privacy, samples, batch = blueprint.run.privacy, blueprint.all_samples, blueprint.batch
    epsilon, delta, clip = privacy.epsilon or 0.0, privacy.delta or 0.0, privacy.clip or 0.0
    step = 0 if newest is None else newest.step
    position = 0 if newest is None else newest.in_epochs_of(blueprint.samples).position
    left = math.ceil((blueprint.samples * blueprint.run.training.epochs - position) / batch)
    rate, spent, accountant = batch / samples, before.steps, privacy.accountant
    noise, lasting = privacy.noise or 1.0, left
    if left and privacy.noise is None:
        noise = noise_for(epsilon, delta, rate=rate, steps=left, before=spent, accountant=accountant)
    elif left:
        lasting = steps_within(epsilon, delta, rate=rate, noise=noise, most=left, before=spent, accountant=accountant)
        if not lasting:
            raise TrainingError(
                f"a budget of epsilon {epsilon:g} at delta {delta:g} does not last for one step with noise {noise:g}",
                hint="give more noise or a larger epsilon; without privacy.noise it is as much as the budget needs",
            )
    return PrivateSteps(
        clip=clip,
        noise=noise,
        samples=samples,
        batch=batch,
        until_step=step + lasting,
        planned_step=step + left,
        first_step=step,
        stream=secrets.token_hex(16),
        request=request,
    )


def _in_words(blueprint: Blueprint, private: PrivateSteps) -> str:
    """Return what a run promises, and how long its budget lasts."""
    privacy = blueprint.run.privacy
    lasts = "" if private.lasts else f"; the budget lasts for {private.until_step:,} of {private.planned_step:,} steps"
    return (
        f"private: epsilon {privacy.epsilon:g} at most, at delta {privacy.delta:g}; each step draws about "
        f"{private.batch:,} of {private.samples:,} samples, clips gradients to {private.clip:g} and adds noise of "
        f"{private.noise:.4g} clips{lasts}"
    )
