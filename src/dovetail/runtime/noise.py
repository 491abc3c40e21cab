"""The noise of a private run, as its blueprint says it: of the dense parameters, and of what the rows of tables owe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from dovetail.embedding.row_optimizer import PrivateSGD
from dovetail.models.schedules import make_schedule
from dovetail.privacy.keys import NOISE_KEY, read_secret
from dovetail.privacy.noise import DenseNoise
from dovetail.privacy.owed import FIRST_LOOK, Look, OwedNoise
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import KEYS
from dovetail.spec.run_sections import RunSchedule


def noise_key(folder: Path, blueprint: Blueprint) -> bytes:
    """Return the key of all noise of the run in a folder; nothing where it is not private."""
    return read_secret(folder / KEYS, NOISE_KEY) if blueprint.private is not None else b""


def dense_noise(blueprint: Blueprint, key: bytes) -> DenseNoise | None:
    """Return what is added to each step's sum of dense gradients; None where the run is not private."""
    private = blueprint.private
    return None if private is None else DenseNoise(key, stream=private.stream, deviation=private.deviation)


def private_rows(blueprint: Blueprint, looks: Iterable[Look] = ()) -> PrivateSGD | None:
    """Return how the rows of a run are stepped from now on, and what they owe; None where it is not private."""
    private, run = blueprint.private, blueprint.run
    if private is None:
        return None
    rate = float(blueprint.row_optimizer["learning_rate"])
    scale = 1.0 / private.batch if run.training.reduction == "mean" else 1.0
    return PrivateSGD(
        learning_rate=rate,
        deviation=rate * scale * private.deviation,
        schedule=msgspec.json.encode(run.optimizer.schedule).decode(),
        stream=private.stream,
        first_step=private.first_step,
        looks=tuple(looks),
    )


def owed_by(rows: PrivateSGD, key: bytes, table: int) -> OwedNoise | None:
    """Return what the rows of a table owe that are stepped so; None of rows that were never trained."""
    if not rows.stream:
        return None
    settings = msgspec.json.decode(rows.schedule, type=RunSchedule)
    factor = make_schedule(settings.name, **settings.settings())
    return OwedNoise(
        key,
        stream=rows.stream,
        table=table,
        deviation=lambda step: rows.deviation * factor(step - 1),
        looks=[Look(*each) for each in rows.looks],
        first_step=rows.first_step,
    )


def owed_before(saved: PrivateSGD | None, now: PrivateSGD, key: bytes, table: int) -> OwedNoise | None:
    """Return what rows owe as they were saved, where from now on they owe other noise."""
    if saved is None or saved.stream == now.stream:
        return None
    return owed_by(saved, key, table)


def going_on(saved: PrivateSGD | None, now: PrivateSGD) -> PrivateSGD:
    """Return how rows are stepped from now on that were looked at when they were saved."""
    looks = tuple(saved.looks) if saved is not None else ()
    found = replace(now, looks=looks)
    if now.first_step and all(step != now.first_step for step, _, _ in (tuple(FIRST_LOOK), *looks)):
        raise TrainingError(
            f"rows were not saved at step {now.first_step}, where their noise begins", hint="a bug: report it"
        )
    return found
