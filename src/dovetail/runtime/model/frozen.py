"""What no server keeps: frozen parameters and buffers in a file of the run, running statistics in its checkpoints.

Both are only read as they were written: blueprint and fingerprint have the checksum of the one, manifests of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dovetail.atomic_file import replace_file
from dovetail.encryption import encoded, read_file
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.checkpoint import RunManifest, checksum_of
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import FIXED
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.parameters import fill_statistics, fixed_tensors, statistics_vector

LOST = "put the file back as it was: no other has what the run began with"


def write_fixed(model: Model, folder: Path, *, instead: Mapping[str, Tensor] | None = None) -> str:
    """Write what training leaves as it is into a run's folder; return the file's checksum, or nothing without one.

    `instead` are values to begin with other than the model's own.
    """
    fixed = fixed_tensors(model) | dict(instead or {})
    tensors = {name: tensor.cpu().clone().contiguous() for name, tensor in fixed.items()}
    if not tensors:
        (folder / FIXED).unlink(missing_ok=True)  # of a start that was cut short
        return ""
    data = encoded(folder / FIXED, save(tensors))
    replace_file(folder / FIXED, data, durable=True)
    return hashlib.sha256(data).hexdigest()


def check_fixed(folder: Path, checksum: str) -> None:
    """Refuse a run whose file of frozen parameters is not as it was written."""
    if not checksum:
        return
    path = folder / FIXED
    if not path.is_file():
        raise TrainingError(f"{path} is missing", hint=LOST)
    if checksum_of(path) != checksum:
        raise TrainingError(f"{path} has a wrong checksum", hint=LOST)


def read_fixed(model: Model, folder: Path, checksum: str) -> None:
    """Give a model what a run began with; `checksum` is of the run's file, empty where it has none."""
    wanted, found = fixed_tensors(model), tensors_in(folder, checksum)
    if {name: tensor.shape for name, tensor in wanted.items()} != {n: t.shape for n, t in found.items()}:
        strange = sorted(wanted.keys() ^ found.keys())
        raise TrainingError(
            f"{folder} was trained with other frozen parameters or buffers than this model has"
            + (f": `{strange[0]}`" if strange else ""),
            hint="give the model that the run began with, built with the same options",
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(found[name])


def tensors_in(folder: Path, checksum: str) -> dict[str, Tensor]:
    """Return the tensors of a run's file, as they were written."""
    check_fixed(folder, checksum)
    try:
        return load(read_file(folder / FIXED)) if checksum else {}
    except (SafetensorError, ValueError, OSError) as error:
        raise TrainingError(f"{folder / FIXED} cannot be read: {error}", hint=LOST) from None


def read_statistics(model: Model, folder: Path, manifest: RunManifest) -> None:
    """Give a model the statistics that workers had gathered when a checkpoint was made, where it has any."""
    values = checkpoints.read_statistics(folder, manifest)
    if values is not None and len(values) == len(statistics_vector(model)):
        fill_statistics(model, values)


def read_newest_statistics(model: Model, run_folder: Path) -> None:
    """Give a model the statistics of the newest checkpoint that has them whole."""
    if not len(statistics_vector(model)):
        return
    for folder in reversed(checkpoints.all_in(run_folder)):
        try:
            read_statistics(model, folder, RunManifest.read(folder))
        except (TrainingError, OSError):
            continue  # damaged, or dropped in this moment
        return
