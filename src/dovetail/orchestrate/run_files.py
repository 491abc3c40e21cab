"""Which run a word means, a file or a model's name with defaults; and a free folder for it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import SpecError, did_you_mean, nearest
from dovetail.models.recipe import RECIPES
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.lock import RunLock, owner_of
from dovetail.spec.files import read_struct
from dovetail.spec.run import Run, RunData, RunModel

RUNS = Path("runs")
DEFAULT_SAMPLES = 200_000
DEFAULT_ROWS_PER_SLOT = 1_000
"""What a model that is given by its name alone is trained on: a small made click log that it can learn."""


def is_run_file(word: str) -> bool:
    """Say whether a word means a run file, not a model."""
    path = Path(word)
    return path.is_file() or path.suffix in (".toml", ".json")


def is_run(word: str) -> bool:
    """Say whether a word means a run: a file, or a model that we have."""
    return is_run_file(word) or word in RECIPES


def read_run(word: str) -> Run:
    """Return the run of a file, or of a model's name."""
    if is_run_file(word):
        return read_struct(Path(word), Run)
    return _run_of_model(word)


def _run_of_model(name: str) -> Run:
    """Return a run of a model with defaults for all the rest."""
    if ":" not in name and name not in RECIPES:
        near = nearest(name, RECIPES)
        raise SpecError(
            f"`{name}` is neither a run file nor a model",
            hint=f"did you mean `{near}`?" if near else "give a .toml file, or a model; " + did_you_mean(name, RECIPES),
        )
    truth = RECIPES[name].truth if name in RECIPES else "deep"
    options: dict[str, Any] = {"truth": truth}
    if truth not in ("user-item", "next-item"):
        options["rows_per_slot"] = DEFAULT_ROWS_PER_SLOT
    return Run(model=RunModel(name=name), data=RunData(options=options, samples=DEFAULT_SAMPLES))


def model_run(
    name: str,
    *,
    model_options: dict[str, Any],
    data: str,
    data_options: dict[str, Any],
    samples: int,
    batch: int,
    seed: int,
) -> Run:
    """Return a run of a model with such options on such data; without data options, on what `train MODEL` takes."""
    if is_run_file(name):
        raise SpecError(
            f"`{name}` is a file, expected a model",
            hint=f"a run file is trained as it is: dovetail train {name}; what is measured, planned and trained here "
            "is a model and its data: dovetail run package.module:function --data FILE",
        )
    run = _run_of_model(name)
    options = data_options if data_options or data != "clicks" else run.data.options
    if data == "clicks" and "truth" in run.data.options:
        options = {"truth": run.data.options["truth"], **options}
    return msgspec.structs.replace(
        run,
        model=msgspec.structs.replace(run.model, options=model_options),
        data=msgspec.structs.replace(run.data, name=data, options=options, samples=samples),
        training=msgspec.structs.replace(run.training, batch=batch, seed=seed),
    )


def alike_workers(run: Run, count: int) -> list[dict[str, Any]]:
    """Return that many workers: as the file's where it has one kind, else plain ones; shares go by speed."""
    if len(run.workers) == 1:
        kept = msgspec.to_builtins(run.workers[0])
        return [{**{key: value for key, value in kept.items() if key != "share" and value is not None}, "count": count}]
    return [{"name": "worker", "count": count}]


def lock_free_folder(run: Run) -> RunLock:
    """Return runs/MODEL-N, N the first number that is free, locked: two that start at once get two."""
    from dovetail.runtime.prepare.run_folder import is_free  # noqa: PLC0415 - torch

    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", run.model.name.rpartition(":")[2] or run.model.name)
    for number in itertools.count(1):
        folder = RUNS / f"{stem}-{number}"
        if folder.exists() and (not is_free(folder) or owner_of(folder) is not None):
            continue
        try:
            lock = RunLock(folder, is_own=True)
        except TrainingError:
            if owner_of(folder) is None:
                raise  # it cannot be written
            continue
        if is_free(folder):
            return lock
        lock.release()
    raise AssertionError("there is no end of numbers")
