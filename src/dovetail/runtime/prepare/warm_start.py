"""Beginning a run with parameters that are there already: of another run, or of a `state_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding import Table, make_row_optimizer
from dovetail.embedding.checkpoints.format import Checkpoint
from dovetail.embedding.row_optimizer import PrivateSGD
from dovetail.encryption import EncryptionError, is_encrypted, read_file
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint, TableSpec, table_seed
from dovetail.runtime.checkpoint import MANIFEST, RunManifest
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import table_rows
from dovetail.runtime.folder import BEST, BLUEPRINT
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.frozen import tensors_in
from dovetail.runtime.model.parameters import fixed_tensors, named_statistics

PREFIX = "layers."
ROWS_AT_ONCE = 1 << 16
Floats = NDArray[np.float32]
FirstValues = str | Path | Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Known:
    """Parameters by name; of a table, the keys that have a row and the rows."""

    dense: Mapping[str, Floats]
    """Frozen parameters and buffers too."""
    tables: Mapping[str, tuple[NDArray[np.int64], Floats]]
    statistics: Floats | None = None
    """Running means and variances of a checkpoint, one after the other."""


def known_from(start: FirstValues) -> Known:
    """Return what a run's folder, a checkpoint's folder, a file of safetensors or a `state_dict` holds."""
    if isinstance(start, Mapping):
        return Known({name: _array(value) for name, value in start.items() if isinstance(value, Tensor)}, {})
    path = Path(start)
    if path.is_file():
        return _of_file(path)
    if (path / MANIFEST).is_file():
        run = path.parent if path.name == BEST else path.parent.parent
        return _of_checkpoint(run, path)
    if (path / BLUEPRINT).is_file():
        return _of_checkpoint(path, checkpoints.newest(path))
    raise TrainingError(
        f"{path} is neither a run, nor a checkpoint, nor a file of parameters",
        hint="give the folder of a run or of a checkpoint, model.safetensors, a .pt file, or a state_dict",
    )


def fill_first(known: Known, blueprint: Blueprint, partial: Path, values: Floats) -> tuple[Floats, int]:
    """Return the dense parameters with all that is known, and for how many servers tables were written.

    Whatever the model has and nobody knows keeps its first values. Where nothing fits, that is an error.
    """
    values = values.copy()
    found = 0
    for entry in blueprint.dense:
        name, value = _find(entry.name, known.dense)
        if value is None:
            continue
        if value.size != entry.size or tuple(value.shape) != entry.shape:
            raise TrainingError(
                f"`{name}` is {_shape(value.shape)} in what the run starts from, {_shape(entry.shape)} in the model",
                hint="start from parameters of the same model",
            )
        values[entry.offset : entry.offset + entry.size] = value.reshape(-1)
        found += 1
    with_rows = 0
    for position, spec in enumerate(blueprint.tables):
        rows = _rows_of(spec, known)
        with_rows += rows is not None
        _write_table(blueprint, spec, position, partial, rows)
    if not found and not with_rows:
        raise TrainingError(
            "nothing in what the run starts from has a name that the model knows",
            hint=f"the model's are: {', '.join(entry.name.removeprefix(PREFIX) for entry in blueprint.dense[:5])}, ...",
        )
    return values, 1 if blueprint.tables else 0


def fixed_from(known: Known, model: Model) -> dict[str, Tensor]:
    """Return what is known of a model's frozen parameters and buffers."""
    found = {}
    for name, own in fixed_tensors(model).items():
        _, value = _find(name, known.dense)
        if value is not None and tuple(value.shape) == tuple(own.shape):
            found[name] = torch.from_numpy(value).to(own.dtype)
        _, rows = _find(name.removesuffix(".weight"), known.tables)
        if rows is not None and own.dim() == 2 and rows[1].shape[1] == own.shape[1]:
            keys, values = rows
            here = keys < len(own)
            found[name] = own.detach().cpu().clone()
            found[name][torch.from_numpy(keys[here])] = torch.from_numpy(values[here])
    statistics, offset = list(named_statistics(model)), 0
    if known.statistics is not None and len(known.statistics) == sum(own.numel() for _, own in statistics):
        for name, own in statistics:
            part = known.statistics[offset : offset + own.numel()]
            found[name], offset = torch.from_numpy(part.copy()).view(own.shape), offset + own.numel()
    return found


def _rows_of(spec: TableSpec, known: Known) -> tuple[NDArray[np.int64], Floats] | None:
    """Return the keys and rows that are known of a table."""
    _, rows = _find(spec.name, known.tables)
    if rows is not None:
        keys, values = rows
    else:
        _, weight = _find(f"{spec.name}.weight", known.dense)
        if weight is None:
            return None
        keys, values = np.arange(len(weight), dtype=np.int64), weight
    if values.ndim != 2 or values.shape[1] != spec.width or (len(keys) and int(keys.max()) >= spec.num_rows):
        raise TrainingError(
            f"table `{spec.name}` is {_shape(values.shape)} in what the run starts from, and {spec.num_rows} x "
            f"{spec.width} in the model",
            hint="start from parameters of the same model",
        )
    return keys, values


def _write_table(
    blueprint: Blueprint,
    spec: TableSpec,
    position: int,
    partial: Path,
    rows: tuple[NDArray[np.int64], Floats] | None,
) -> None:
    """Write a table of the first checkpoint, as a run of one server would."""
    optimizer: dict[str, Any] = dict(blueprint.row_optimizer)
    if blueprint.run.privacy.is_private:
        optimizer["name"] = PrivateSGD.name
    with Table(
        width=spec.width,
        optimizer=make_row_optimizer(str(optimizer.pop("name")), **optimizer),
        seed=table_seed(blueprint.values_seed, position),
        scale=spec.scale,
        host_bytes=max(blueprint.run.servers.host_bytes, 64 * (len(rows[0]) if rows is not None else 1) * spec.width),
    ) as table:
        for first in range(0, len(rows[0]) if rows is not None else 0, ROWS_AT_ONCE):
            if rows is not None:
                table.fill(rows[0][first : first + ROWS_AT_ONCE], rows[1][first : first + ROWS_AT_ONCE])
        table.save(partial / checkpoints.table_folder(position, 0))


def _of_checkpoint(run: Path, folder: Path) -> Known:
    """Return the parameters of a run's checkpoint; of tables, the rows that were trained."""
    blueprint = Blueprint.read(run)
    manifest = RunManifest.read(folder)
    manifest.check_files(folder)
    values, _ = checkpoints.load_dense(folder, manifest)
    dense = {
        entry.name: values[entry.offset : entry.offset + entry.size].reshape(entry.shape) for entry in blueprint.dense
    }
    tables = {}
    for position, spec in enumerate(blueprint.tables):
        if blueprint.private is not None:  # with what rows owe, all of them
            all_keys = np.arange(spec.num_rows, dtype=np.int64)
            tables[spec.name] = all_keys, table_rows(blueprint, manifest, folder, position, run_folder=run)
            continue
        keys, rows = np.zeros(0, dtype=np.int64), np.zeros((0, spec.width), dtype=np.float32)
        for server in range(manifest.num_servers):
            for saved in Checkpoint.newest(manifest.table_at(folder, position, server)):
                for part in saved.parts():
                    kept = ~np.isin(keys, np.concatenate([part.tombstones, part.keys]))  # the newest of a key counts
                    keys = np.concatenate([keys[kept], part.keys])
                    rows = np.concatenate([rows[kept], part.rows[:, : spec.width]])
        tables[spec.name] = (keys, rows)
    fixed = {name: _array(tensor) for name, tensor in tensors_in(run, blueprint.fixed).items()}
    return Known(fixed | dense, tables, checkpoints.read_statistics(folder, manifest))


def _of_file(path: Path) -> Known:
    """Return the parameters in a file."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load, load_file  # noqa: PLC0415 - only here

            state: Any = load(read_file(path)) if is_encrypted(path) else load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except EncryptionError:
        raise
    except Exception as problem:  # whatever is wrong with a file
        raise TrainingError(
            f"{path} cannot be read: {problem}", hint="give model.safetensors, or a state_dict saved by torch.save"
        ) from None
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping):
        raise TrainingError(f"{path} holds a {type(state).__name__}", hint="give a state_dict")
    return known_from(state)


def _find(name: str, known: Mapping[str, Any]) -> tuple[str, Any]:
    """Return what is known by a name, with or without what Dovetail puts before it."""
    if name in known:
        return name, known[name]
    alike = next((other for other in known if _plain(other) == _plain(name)), None)
    return (name, None) if alike is None else (alike, known[alike])


def _plain(name: str) -> str:
    """Return a name without what tells Dovetail's names from those of a user's module."""
    return name.removeprefix(PREFIX).replace(".inner.", ".").replace(".", "_")


def _array(tensor: Tensor) -> Floats:
    """Return a tensor as numbers."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())


def _shape(shape: tuple[int, ...]) -> str:
    """Return a shape in words."""
    return " x ".join(str(length) for length in shape) or "one number"
