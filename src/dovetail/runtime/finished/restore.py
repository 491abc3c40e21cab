"""From a checkpoint to a plain model: every parameter in its place, whatever number of servers wrote it.

Rows that training touched come from the checkpoint. All others have their first values, which depend on the seed, the
table and the key alone, as a server would have made them at the first look.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dovetail.data.load import open_data
from dovetail.data.source import Source
from dovetail.embedding import Checkpoint, first_values
from dovetail.embedding.checkpoints.loading import saved_private
from dovetail.privacy.owed import OwedNoise
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint, TableSpec, table_seed
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint, Matter
from dovetail.runtime.model.build import Model, build_model, of_users
from dovetail.runtime.model.frozen import read_fixed, read_statistics
from dovetail.runtime.model.kept_model import kept_model
from dovetail.runtime.model.parameters import dense_entries, sparse_modules
from dovetail.runtime.noise import noise_key, owed_by
from dovetail.runtime.trust import check_trusted
from dovetail.spec.run import Run

ROWS_AT_ONCE = 1 << 18
M = TypeVar("M", bound=nn.Module)


def restore_model(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    source: Source | None = None,
    checkpoint: Path | None = None,
    trust: bool = False,
) -> Model:
    """Return a run's model as it is in a checkpoint, the newest unless another is given, for use without servers.

    `model` is the user's own module where the run was started with one (it is left as it is), `source` their own data.
    Code that the folder names is only run where nobody else can write the folder, or with `trust`.
    """
    folder = Path(folder)
    blueprint = Blueprint.read(folder)
    own_model = model is not None
    check_trusted(folder, blueprint.run, trust=trust, own_model=own_model, own_data=own_model or source is not None)
    model = model if model is not None else kept_model(folder, blueprint.run, trust=trust)
    if model is not None:
        graph = of_users(copy.deepcopy(model), blueprint.run)
    else:
        check_by_name(blueprint.run, model=model, source=source)
        run = blueprint.run
        if source is None:
            source = open_data(run.data.name, run.data.options, key_file=run.checkpoint.key_file)
        graph = build_model(run, source.schema)
    fill_model(graph, blueprint, folder, checkpoint or checkpoints.newest(folder))
    return graph


def restore_into(model: M, folder: Path | str, *, checkpoint: Path | None = None, trust: bool = False) -> M:
    """Fill the user's own module from a run that was started with it, and return it."""
    folder = Path(folder)
    blueprint = Blueprint.read(folder)
    check_trusted(folder, blueprint.run, trust=trust, own_model=True, own_data=True)
    fill_model(of_users(model, blueprint.run), blueprint, folder, checkpoint or checkpoints.newest(folder))
    return model


def check_by_name(run: Run, *, model: nn.Module | None, source: Source | None) -> None:
    """Refuse a model or data that only a Python program can make, unless they are given."""
    for name, given, what in ((run.model.name, model, "model"), (run.data.name, source, "data")):
        if given is None and "." in name and ":" not in name:
            raise TrainingError(
                f"the {what} of this run is an object of a Python program, `{name}`",
                hint=_how_to_give(what, name),
            )


def _how_to_give(what: str, name: str) -> str:
    """Return where a model or data that were objects are given."""
    if what == "data":
        return (
            "say which others to look at: --data FILE; in a program source= of evaluate and export, data= of resume; "
            "or train on data by their path"
        )
    module, _, kind = name.rpartition(".")
    place = "FILE.py" if module == "__main__" else module
    return (
        f"say what makes it: --model {place}:{kind} of evaluate, predict and export (a class, or a function without "
        f"arguments); in a program model={kind}(...), which resume takes too; or train it by that name from the start"
    )


def fill_model(model: Model, blueprint: Blueprint, run_folder: Path, folder: Path) -> None:
    """Fill a model from a checkpoint's folder, its files checked first: all parameters, frozen or not, and buffers."""
    manifest = RunManifest.read(folder)
    manifest.check_files(folder)
    _check_of_this_run(manifest, blueprint, folder)
    sparse = sparse_modules(model)
    if tuple(each.spec() for each in sparse) != blueprint.tables or dense_entries(model) != blueprint.dense:
        raise TrainingError(
            f"{folder} was trained with another model than this: {_what_differs(model, blueprint)}",
            hint="give the model that the run began with, built with the same options: --model package.module:function "
            "of a function that does",
        )
    with torch.no_grad():
        values, _ = checkpoints.load_dense(folder, manifest)
        parameters = dict(model.owner.named_parameters())
        for entry in blueprint.dense:
            part = torch.from_numpy(values[entry.offset : entry.offset + entry.size])
            parameters[entry.name].copy_(part.view(entry.shape))
        for position, each in enumerate(sparse):
            rows = torch.from_numpy(table_rows(blueprint, manifest, folder, position, run_folder=run_folder))
            if each.module.weight.is_meta:
                weight = nn.Parameter(rows)
                for layer in each.layers:
                    layer.weight = weight
            else:
                each.module.weight.copy_(rows)
        read_fixed(model, run_folder, blueprint.fixed)
        read_statistics(model, folder, manifest)


def _what_differs(model: Model, blueprint: Blueprint) -> str:
    """Return the first parameter that is not as it was, in words."""
    there = {each.name: list(each.shape) for each in blueprint.dense}
    there |= {each.name: [each.num_rows, each.width] for each in blueprint.tables}
    here = {each.name: list(each.shape) for each in dense_entries(model)}
    here |= {spec.name: [spec.num_rows, spec.width] for spec in (each.spec() for each in sparse_modules(model))}
    for name in [*there, *here]:
        if there.get(name) != here.get(name):
            was, now = (f"of shape {each[name]}" if name in each else "not there" for each in (there, here))
            return f"`{name}` was {was}, and is {now}"
    return "its parameters come in another order, or are stored otherwise"


def _check_of_this_run(manifest: RunManifest, blueprint: Blueprint, folder: Path) -> None:
    """Refuse a checkpoint with other parameters than the run's; in which order they were trained is of no matter."""
    if manifest.fingerprint is None:
        return
    for difference in manifest.fingerprint.differences(Fingerprint.of(blueprint)):
        if difference.matter is Matter.NEVER and not difference.what.startswith("data."):
            raise TrainingError(
                f"{folder} is of another run: {difference}", hint="give a checkpoint of the run, or leave it out"
            )


def table_rows(
    blueprint: Blueprint, manifest: RunManifest, folder: Path, position: int, *, run_folder: Path | None = None
) -> NDArray[np.float32]:
    """Return all rows of a table: float32 [num_rows, width].

    Rows of a private run get what noise they owe, those as well that no sample ever looked up: nobody sees from a row
    whether one did. That takes the key of noise in the run's folder.
    """
    spec = blueprint.tables[position]
    owed = _owed(blueprint, manifest, folder, position, run_folder)
    is_there = np.zeros(spec.num_rows, dtype=np.bool_)
    seed = table_seed(blueprint.values_seed, position)
    rows = np.empty((spec.num_rows, spec.width), dtype=np.float32)
    for first in range(0, spec.num_rows, ROWS_AT_ONCE):
        keys = np.arange(first, min(first + ROWS_AT_ONCE, spec.num_rows), dtype=np.int64)
        rows[keys] = first_values(keys, width=spec.width, seed=seed, scale=spec.scale)
    for server in range(manifest.num_servers):
        for saved in Checkpoint.newest(manifest.table_at(folder, position, server)):
            for part in saved.parts():
                _check_keys(part.keys, spec, folder)
                gone = part.tombstones
                rows[gone] = first_values(gone, width=spec.width, seed=seed, scale=spec.scale)
                values = part.rows[:, : spec.width]
                if owed is not None:
                    values = values.copy()
                    owed.add_to(values, part.keys, part.rows[:, spec.width])
                    is_there[gone], is_there[part.keys] = False, True
                rows[part.keys] = values
    if owed is not None:
        never = np.flatnonzero(~is_there)
        for first in range(0, len(never), ROWS_AT_ONCE):
            keys = never[first : first + ROWS_AT_ONCE]
            values = rows[keys]
            owed.add_to(values, keys, np.zeros(len(keys), dtype=np.float32))
            rows[keys] = values
    if spec.padding is not None:
        rows[spec.padding] = 0.0
    return rows


def _owed(
    blueprint: Blueprint, manifest: RunManifest, folder: Path, position: int, run_folder: Path | None
) -> OwedNoise | None:
    """Return what the rows of a table in a checkpoint owe."""
    if blueprint.private is None or not manifest.num_servers:
        return None
    saved = saved_private([manifest.table_at(folder, position, each) for each in range(manifest.num_servers)])
    run_folder = folder.parent.parent if run_folder is None else run_folder
    return None if saved is None else owed_by(saved, noise_key(run_folder, blueprint), position)


def _check_keys(keys: NDArray[np.int64], spec: TableSpec, folder: Path) -> None:
    """Refuse rows that the table has no place for."""
    if len(keys) and not 0 <= keys.min() <= keys.max() < spec.num_rows:
        raise TrainingError(
            f"{folder}: table `{spec.name}` of {spec.num_rows} rows has a key {int(keys.max())}",
            hint="it was written by another model; resume from another checkpoint",
        )
