"""The dense parameters of a trainer, in one vector, and their optimizer's step: one pass over it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from dovetail.embedding.tiers.device.captured_step import WARM_STEPS, Record, recorder_for
from dovetail.privacy.noise import DenseNoise
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest, load_dense, save_dense
from dovetail.runtime.dense.kernels import sum_of_squares
from dovetail.runtime.dense.optimizer import (
    GroupedOptimizer,
    clipped_scale,
    from_device,
    optimizer_of,
    scale_to_norm,
    to_device,
)
from dovetail.spec.run_sections import RunOptimizer


class DenseStep:
    """Steps a vector of parameters, on a device where it lies there, by a vector of gradients that begin anew then."""

    def __init__(
        self,
        blueprint: Blueprint,
        values: Tensor,
        gradients: Tensor,
        checkpoint: Path,
        manifest: RunManifest,
        *,
        quiet: Callable[[], AbstractContextManager[object]] = nullcontext,
        noise: DenseNoise | None = None,
    ) -> None:
        """Go on as the checkpoint ends; while a step is captured, others are kept `quiet`.

        `noise` is added to each sum of gradients.
        """
        self._noise = noise
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
        record = recorder_for(values.device) if blueprint.run.table.graph else None
        launches = StepLaunches(self._optimizer, self._settings, self._there, record=record, quiet=quiet)
        self._launches = None if self._is_here else launches
        self.steps = manifest.dense_steps
        """Steps that were taken."""

    @torch.no_grad()
    def take(self, *, step: int, scale: float, factor: float) -> None:
        """Step by the gradients times `scale`, at `factor` times the rate; the run's first step has the number 1."""
        if not len(self.values):
            return
        self.steps += 1
        if self._noise is not None:
            self._add_noise(self._noise, step)
        if self._launches is not None:
            self._launches.take(self.values, self.gradients, scale=scale, factor=factor, step_number=self.steps)
            return
        limit, values, gradients = self._settings.clip_norm, self.values.numpy(), self.gradients.numpy()
        if limit is not None:
            scale = clipped_scale(scale, sum_of_squares(gradients), limit)
        how = {"step_number": self.steps, "factor": factor, "clip_value": self._settings.clip_value}
        self._optimizer.step(values, gradients, self._here, scale=scale, **how)
        self.gradients.zero_()

    def _add_noise(self, noise: DenseNoise, step: int) -> None:
        """Add the noise of a step, which is drawn on the host, to the sum."""
        if self._is_here:
            noise.add(self.gradients.numpy(), step=step)
            return
        drawn = torch.zeros(len(self.gradients))
        noise.add(drawn.numpy(), step=step)
        self.gradients.add_(drawn.to(self.gradients.device))

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


class StepLaunches:
    """Steps a vector on a device; on CUDA the launches of a step are captured, and replayed for the next ones.

    What changes from step to step, the scale and the optimizer's numbers, lies on the device.
    """

    def __init__(
        self,
        optimizer: GroupedOptimizer,
        settings: RunOptimizer,
        state: Mapping[str, Tensor],
        *,
        record: Record | None,
        quiet: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Step by an optimizer that keeps its `state` on the device; `record` captures a step where that is wanted."""
        self._optimizer, self._settings, self._state = optimizer, settings, state
        self._record, self._quiet = record, quiet
        self._told: list[float] = []
        self._numbers: Tensor | None = None
        self._taken = 0
        self._again: Callable[[], object] | None = None

    def take(self, values: Tensor, gradients: Tensor, *, scale: float, factor: float, step_number: int) -> None:
        """Step by the gradients times `scale`, at `factor` times the rate, and begin the gradients anew."""
        numbers = self._optimizer.numbers(step_number=step_number, factor=factor)
        told = [scale, *(number for own in numbers for number in own)]
        if self._numbers is None:
            self._numbers = torch.zeros(len(told), device=values.device)
        if told != self._told:
            is_cuda = values.device.type == "cuda"
            self._numbers.copy_(torch.tensor(told, dtype=torch.float32, pin_memory=is_cuda), non_blocking=is_cuda)
            self._told = told
        sizes = [len(own) for own in numbers]
        self._taken += 1
        if self._again is None and self._taken > WARM_STEPS and self._record is not None:
            with self._quiet():
                self._again = self._record(lambda: self._launch(values, gradients, sizes))
        if self._again is None:
            self._launch(values, gradients, sizes)
        else:
            self._again()

    def _launch(self, values: Tensor, gradients: Tensor, sizes: list[int]) -> None:
        """Launch a step by the numbers on the device."""
        if self._numbers is None:
            raise RuntimeError("a step is launched before its numbers are known")
        scale, *rest = self._numbers.unbind()
        numbers = []
        for size in sizes:
            numbers.append(rest[:size])
            rest = rest[size:]
        clip_norm, clip_value = self._settings.clip_norm, self._settings.clip_value
        if clip_norm is not None:
            scale_to_norm(gradients, scale, clip_norm)
            scale = torch.ones_like(scale)
        self._optimizer.step_on_device(
            values, gradients, self._state, numbers=numbers, scale=scale, clip_value=clip_value
        )
        gradients.zero_()
