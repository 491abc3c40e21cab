"""Files beside the checkpoints for what no server keeps: frozen parameters and buffers, and running statistics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import FIXED, STATISTICS
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.parameters import fill_statistics, fixed_tensors, statistics_vector


def write_fixed(model: Model, folder: Path) -> None:
    """Write what training leaves as it is into a run's folder."""
    tensors = {name: tensor.cpu().clone().contiguous() for name, tensor in fixed_tensors(model).items()}
    if tensors:
        save_file(tensors, folder / FIXED)


def write_statistics(model: Model, folder: Path) -> None:
    """Write a model's running means and variances, where it has any, into a run's folder."""
    values = statistics_vector(model)
    if len(values):
        save_arrays({"values": values}, folder / STATISTICS)


def read_fixed(model: Model, folder: Path) -> None:
    """Give a model what a run began with, and the statistics that its workers have gathered since."""
    wanted = fixed_tensors(model)
    if wanted and (folder / FIXED).is_file():
        found = load_file(folder / FIXED)
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
    if len(statistics_vector(model)) and (folder / STATISTICS).is_file():
        values = load_arrays(folder / STATISTICS)["values"].astype(np.float32)
        if len(values) == len(statistics_vector(model)):
            fill_statistics(model, values)
