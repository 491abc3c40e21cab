"""The dense parameters of a trainer, in one vector, and their optimizer's step: one pass over it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest, load_dense, save_dense
from dovetail.runtime.dense.kernels import sum_of_squares
from dovetail.runtime.dense.optimizer import clipped_scale, from_device, optimizer_of, scale_to_norm, to_device


class DenseStep:
    """Steps a vector of parameters, on a device where it lies there, by a vector of gradients that begin anew then."""

    def __init__(
        self, blueprint: Blueprint, values: Tensor, gradients: Tensor, checkpoint: Path, manifest: RunManifest
    ) -> None:
        """Go on as the checkpoint ends."""
        self.values, self.gradients = values, gradients
        self._settings = blueprint.run.optimizer
        self._optimizer = optimizer_of(blueprint)
        loaded, state = load_dense(checkpoint, manifest)
        with torch.no_grad():
            values.copy_(torch.from_numpy(loaded))
        self._is_here = values.device.type == "cpu"
        state = state or self._optimizer.first_state(len(loaded))
        self._here = {name: vector.copy() for name, vector in state.items()} if self._is_here else {}
        self._there: Mapping[str, Tensor] = {} if self._is_here else to_device(state, values.device)
        self.steps = manifest.dense_steps
        """Steps that were taken."""

    @torch.no_grad()
    def take(self, *, scale: float, factor: float) -> None:
        """Step by the gradients times `scale`, at `factor` times the rate."""
        if not len(self.values):
            return
        self.steps += 1
        how = {"step_number": self.steps, "factor": factor, "clip_value": self._settings.clip_value}
        limit = self._settings.clip_norm
        if self._is_here:
            values, gradients = self.values.numpy(), self.gradients.numpy()
            if limit is not None:
                scale = clipped_scale(scale, sum_of_squares(gradients), limit)
            self._optimizer.step(values, gradients, self._here, scale=scale, **how)
        else:
            if limit is not None:
                scale_to_norm(self.gradients, scale, limit)
                scale = 1.0
            self._optimizer.step_on_device(self.values, self.gradients, self._there, scale=scale, **how)
        self.gradients.zero_()

    def save(self, folder: Path) -> None:
        """Write the parameters and their optimizer's state into a checkpoint's folder."""
        save_dense(folder, 0, 0, self.values.cpu().numpy(), self._here if self._is_here else from_device(self._there))

    def digest(self) -> str:
        """Return a checksum of the parameters and of their optimizer's state."""
        state = self._here if self._is_here else from_device(self._there)
        found = hashlib.sha256(self.values.cpu().numpy().tobytes())
        for name in sorted(state):
            found.update(state[name].tobytes())
        return found.hexdigest()
