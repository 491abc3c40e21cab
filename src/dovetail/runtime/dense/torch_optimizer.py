"""Dense optimizers on the device where the parameters lie: the formulas of `kernels`, as operations of PyTorch's.

The order of operations is that of the kernels, but a device may round them otherwise: results agree to a few units in
the last place, not bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from dovetail.runtime.dense.optimizer import DenseOptimizer, GroupedOptimizer, State

Tensors = dict[str, Tensor]


def _sgd(values: Tensor, gradient: Tensor, rate: float) -> None:
    """Step by the gradient."""
    values.add_(gradient, alpha=-rate)


def _momentum(values: Tensor, gradient: Tensor, velocity: Tensor, rate: float, kept: float) -> None:
    """Step by the velocity."""
    velocity.mul_(kept).add_(gradient)
    values.add_(velocity, alpha=-rate)


def _adagrad(values: Tensor, gradient: Tensor, squares: Tensor, rate: float, epsilon: float) -> None:
    """Step by the gradient over the root of all squares."""
    squares.addcmul_(gradient, gradient)
    values.addcdiv_(gradient, squares.sqrt().add_(epsilon), value=-rate)


def _adam(
    values: Tensor, gradient: Tensor, first: Tensor, second: Tensor,
    rate: float, left1: float, left2: float, epsilon: float, root: float, kept: float,
) -> None:  # fmt: skip
    """Step by the moments."""
    first.lerp_(gradient, left1)
    second.mul_(1 - left2).addcmul_(gradient, gradient, value=left2)
    values.mul_(kept).addcdiv_(first, second.sqrt().mul_(root).add_(epsilon), value=-rate)


STEPS: Mapping[str, Callable[..., None]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "adam": _adam,
    "adamw": _adam,
}


def step_on_device(
    optimizer: DenseOptimizer | GroupedOptimizer,
    values: Tensor,
    gradients: Tensor,
    state: Tensors,
    *,
    step_number: int,
    scale: float,
    factor: float,
    clip_value: float | None,
) -> None:
    """Change `values` and `state` in place, and `gradients` with them; see `DenseOptimizer.step`."""
    gradients.mul_(scale)
    if clip_value is not None:
        gradients.clamp_(-clip_value, clip_value)
    for here, each in _parts(optimizer, len(values)):
        vectors = [state[name][here] for name in each.state_vectors()]
        numbers = each.numbers(each.learning_rate * factor, step_number)
        STEPS[each.name](values[here], gradients[here], *vectors, *numbers)


def scale_to_norm(gradients: Tensor, scale: float, limit: float) -> None:
    """Multiply a gradient by `scale`, and by less where its norm were above `limit`; nobody waits for the device."""
    norm = gradients.double().square().sum().sqrt() * scale
    gradients.mul_((scale * (limit / (norm + 1e-6)).clamp(max=1.0)).to(gradients.dtype))


def _parts(optimizer: DenseOptimizer | GroupedOptimizer, size: int) -> Iterator[tuple[slice, DenseOptimizer]]:
    """Yield which part of the vectors is updated by what."""
    if isinstance(optimizer, GroupedOptimizer):
        for part in optimizer.parts:
            yield slice(part.first, part.last), part.optimizer
    else:
        yield slice(0, size), optimizer


def to_device(state: State, device: torch.device) -> Tensors:
    """Return vectors of state as tensors on a device."""
    return {name: torch.from_numpy(vector).to(device) for name, vector in state.items()}


def from_device(state: Tensors) -> State:
    """Return vectors of state in host memory."""
    return {name: np.ascontiguousarray(vector.cpu().numpy()) for name, vector in state.items()}
