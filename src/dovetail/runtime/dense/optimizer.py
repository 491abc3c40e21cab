"""Dense optimizers: how a flat vector of parameters and its gradient become the next vector.

One frozen value each, and a registry of names. A server steps the part that it holds; parts of one vector step apart
and give the bits of the whole.

Each formula stands twice, side by side: as a kernel for vectors in host memory, one pass over memory that lets other
threads run, in processes that do without PyTorch; and as operations of PyTorch's for a device (`on_device`). Their
order is that of the kernels, but a device may round them otherwise: results agree to a few units in the last place,
not bit by bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import did_you_mean
from dovetail.runtime.blueprint import Blueprint, DenseEntry
from dovetail.runtime.dense import kernels
from dovetail.runtime.errors import TrainingError
from dovetail.spec.run_sections import RunGroup

if TYPE_CHECKING:  # servers and coordinators do without
    import torch
    from torch import Tensor

Vector = NDArray[np.float32]
State = dict[str, Vector]
Kernel = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseOptimizer(ABC):
    """What a server needs of an optimizer: its name, its rate, its vectors of state and its step."""

    learning_rate: float
    name: ClassVar[str]
    kernel: ClassVar[Kernel]
    vectors: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        for key, value in asdict(self).items():
            if not math.isfinite(value) or value < 0 or (key == "learning_rate" and value == 0):
                raise TrainingError(
                    f"the optimizer `{self.name}` has {key} = {value}",
                    hint="give a finite number above zero" if key == "learning_rate" else "give a finite number from 0",
                )

    def state_vectors(self) -> tuple[str, ...]:
        """Return the names of the vectors of state, each as long as the parameters."""
        return self.vectors

    def first_state(self, size: int) -> State:
        """Return the state before the first step of `size` parameters."""
        return {name: np.zeros(size, dtype=np.float32) for name in self.vectors}

    def step(
        self,
        values: Vector,
        gradients: Vector,
        state: State,
        *,
        step_number: int,
        scale: float,
        factor: float = 1.0,
        clip_value: float | None = None,
    ) -> None:
        """Change `values` and `state` in place.

        The gradient used is `gradients * scale`, clipped to +-`clip_value`: `scale` is one over the samples that were
        summed, times the factor of a clipped norm. The rate is `learning_rate * factor`. `step_number` counts from 1.
        """
        parts = [state[name] for name in self.vectors]
        _check(self.name, values, gradients, *parts)
        if step_number < 1:
            raise TrainingError(f"step_number is {step_number}", hint="the first step has the number 1")
        read_only = gradients.view()
        read_only.flags.writeable = False  # one compiled kernel for gradients of either kind
        limit = np.float32(math.inf if clip_value is None else clip_value)
        numbers = map(np.float32, self.numbers(self.learning_rate * factor, step_number))
        type(self).kernel(values, read_only, *parts, np.float32(scale), limit, *numbers)

    @abstractmethod
    def numbers(self, rate: float, step_number: int) -> tuple[float, ...]:
        """Return what the kernel takes last: the rate, then its settings."""

    @staticmethod
    @abstractmethod
    def on_device(values: Tensor, gradient: Tensor, *rest: Any) -> None:
        """Change `values` and the vectors of state, which come next, by the formula of the kernel and its numbers.

        Numbers may lie on the device: then the same launches serve a later step, whose numbers are others.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSGD(DenseOptimizer):
    """w -= rate g; no state."""

    name: ClassVar[str] = "sgd"
    kernel: ClassVar[Kernel] = kernels.sgd

    def numbers(self, rate: float, step_number: int) -> tuple[float, ...]:
        """Return the rate and the settings."""
        return (rate,)

    @staticmethod
    def on_device(values: Tensor, gradient: Tensor, *rest: Any) -> None:
        """Step by the gradient."""
        (rate,) = rest
        values.sub_(gradient * rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMomentum(DenseOptimizer):
    """v = momentum v + g; w -= rate v."""

    momentum: float = 0.9
    name: ClassVar[str] = "momentum"
    kernel: ClassVar[Kernel] = kernels.momentum
    vectors: ClassVar[tuple[str, ...]] = ("velocity",)

    def numbers(self, rate: float, step_number: int) -> tuple[float, ...]:
        """Return the rate and the settings."""
        return rate, self.momentum

    @staticmethod
    def on_device(values: Tensor, gradient: Tensor, *rest: Any) -> None:
        """Step by the velocity."""
        velocity, rate, kept = rest
        velocity.mul_(kept).add_(gradient)
        values.sub_(velocity * rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseAdagrad(DenseOptimizer):
    """s += g g; w -= rate g / (sqrt(s) + epsilon)."""

    epsilon: float = 1e-10
    first_sum: float = 0.0
    name: ClassVar[str] = "adagrad"
    kernel: ClassVar[Kernel] = kernels.adagrad
    vectors: ClassVar[tuple[str, ...]] = ("squares",)

    def first_state(self, size: int) -> State:
        """Return sums of squares of `first_sum`."""
        return {"squares": np.full(size, self.first_sum, dtype=np.float32)}

    def numbers(self, rate: float, step_number: int) -> tuple[float, ...]:
        """Return the rate and the settings."""
        return rate, self.epsilon

    @staticmethod
    def on_device(values: Tensor, gradient: Tensor, *rest: Any) -> None:
        """Step by the gradient over the root of all squares."""
        squares, rate, epsilon = rest
        squares.addcmul_(gradient, gradient)
        values.sub_((gradient * rate).div_(squares.sqrt().add_(epsilon)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseAdam(DenseOptimizer):
    """Adam (Kingma and Ba, 2015), bias corrected by `step_number`."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    name: ClassVar[str] = "adam"
    kernel: ClassVar[Kernel] = kernels.adam
    vectors: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    def __post_init__(self) -> None:
        """Refuse betas of 1 and above."""
        DenseOptimizer.__post_init__(self)
        if max(self.beta1, self.beta2) >= 1:
            raise TrainingError(
                f"the optimizer `{self.name}` has beta1 = {self.beta1}, beta2 = {self.beta2}", hint="both are below 1"
            )

    def numbers(self, rate: float, step_number: int) -> tuple[float, ...]:
        """Return the rate and the settings."""
        return (
            rate / (1 - self.beta1**step_number),
            1 - self.beta1,
            1 - self.beta2,
            self.epsilon,
            1 / math.sqrt(1 - self.beta2**step_number),
            self._kept(rate),
        )

    def _kept(self, rate: float) -> float:
        """Return what decay leaves of the parameters."""
        return 1.0

    @staticmethod
    def on_device(values: Tensor, gradient: Tensor, *rest: Any) -> None:
        """Step by the moments."""
        first, second, rate, left1, left2, epsilon, root, kept = rest
        first.lerp_(gradient, left1)
        second.mul_(1 - left2).addcmul_(gradient, gradient * left2)
        values.mul_(kept).sub_((first * rate).div_(second.sqrt().mul_(root).add_(epsilon)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseAdamW(DenseAdam):
    """Adam with decoupled decay (Loshchilov and Hutter, 2019): w = (1 - rate weight_decay) w, then Adam."""

    weight_decay: float = 0.01
    name: ClassVar[str] = "adamw"

    def _kept(self, rate: float) -> float:
        return 1 - rate * self.weight_decay


DENSE_OPTIMIZERS: dict[str, type[DenseOptimizer]] = {
    kind.name: kind for kind in (DenseSGD, DenseMomentum, DenseAdagrad, DenseAdam, DenseAdamW)
}


def make_dense_optimizer(name: str, *, learning_rate: float, **settings: float) -> DenseOptimizer:
    """Return the optimizer called `name`."""
    if name not in DENSE_OPTIMIZERS:
        question = did_you_mean(name, DENSE_OPTIMIZERS)
        known = ", ".join(f"`{known}`" for known in DENSE_OPTIMIZERS)
        raise TrainingError(
            f"there is no dense optimizer `{name}`",
            hint=question if known in question else f"{question} (known are: {known})",
        )
    kind = DENSE_OPTIMIZERS[name]
    allowed = [field.name for field in fields(kind)]
    if unknown := [key for key in settings if key not in allowed]:
        raise TrainingError(
            f"the optimizer `{name}` has no setting `{unknown[0]}`",
            hint=f"it has {', '.join(f'`{key}`' for key in allowed)}",
        )
    return kind(learning_rate=learning_rate, **settings)


def described(optimizer: DenseOptimizer) -> dict[str, Any]:
    """Return an optimizer as plain values for a file; `make_dense_optimizer(**described(o))` is `o` again."""
    return {"name": optimizer.name, **asdict(optimizer)}


def _check(name: str, values: Vector, *others: Vector) -> None:
    """Refuse vectors that a kernel would read beyond their ends or as other numbers."""
    for vector in (values, *others):
        if vector.dtype != np.float32 or vector.ndim != 1 or len(vector) != len(values):
            raise TrainingError(
                f"`{name}` got a vector of {vector.shape} {vector.dtype} beside {len(values)} parameters",
                hint="parameters, gradients and state are float32 vectors of one length",
            )


PREFIX = "layers."


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Neighbours in the vector of dense parameters that are updated alike."""

    first: int
    last: int
    optimizer: DenseOptimizer


class GroupedOptimizer:
    """Steps each part of a vector by its own optimizer; all are of one kind, so their state is alike."""

    def __init__(self, parts: Sequence[ParameterGroup]) -> None:
        """Keep the parts, which lie one after the other from 0 on; where all are updated alike, there is one."""
        self.parts = parts
        self.name = parts[0].optimizer.name

    def state_vectors(self) -> tuple[str, ...]:
        """Return the names of the vectors of state, each as long as the parameters."""
        return self.parts[0].optimizer.state_vectors()

    def first_state(self, size: int) -> State:
        """Return the state before the first step."""
        states = [part.optimizer.first_state(part.last - part.first) for part in self.parts]
        return {name: np.concatenate([state[name] for state in states]) for name in self.state_vectors()}

    def step(self, values: Vector, gradients: Vector, state: State, **how: Any) -> None:
        """Change `values` and `state` in place; see `DenseOptimizer.step`."""
        for part in self.parts:
            here = slice(part.first, part.last)
            mine = {name: vector[here] for name, vector in state.items()}
            part.optimizer.step(values[here], gradients[here], mine, **how)

    def numbers(self, *, step_number: int, factor: float) -> list[tuple[float, ...]]:
        """Return the numbers of each part's step; `step_on_device` takes them."""
        rates = [part.optimizer.learning_rate * factor for part in self.parts]
        return [part.optimizer.numbers(rate, step_number) for part, rate in zip(self.parts, rates, strict=True)]

    def step_on_device(
        self,
        values: Tensor,
        gradients: Tensor,
        state: Mapping[str, Tensor],
        *,
        numbers: Sequence[Sequence[float | Tensor]],
        scale: float | Tensor,
        clip_value: float | None,
    ) -> None:
        """Do what `step` does with vectors on a device; changes `gradients` too."""
        scale_and_clip(gradients, scale, clip_value)
        for part, own in zip(self.parts, numbers, strict=True):
            here = slice(part.first, part.last)
            mine = [state[name][here] for name in part.optimizer.vectors]
            part.optimizer.on_device(values[here], gradients[here], *mine, *own)


def optimizer_of(blueprint: Blueprint, part: slice | None = None) -> GroupedOptimizer:
    """Return what updates a run's dense parameters, or a part of their vector."""
    settings = dict(blueprint.optimizer)
    whole = make_dense_optimizer(str(settings.pop("name")), **settings)  # type: ignore[arg-type]
    first, last = (part.start, part.stop) if part is not None else (0, blueprint.dense_size)
    parts: list[ParameterGroup] = []
    for entry in blueprint.dense if blueprint.run.optimizer.groups else ():
        begin, end = max(first, entry.offset), min(last, entry.offset + entry.size)
        if begin >= end:
            continue
        optimizer = _optimizer_for(entry, blueprint, whole)
        if parts and parts[-1].optimizer == optimizer:
            parts[-1] = ParameterGroup(parts[-1].first, end - first, optimizer)
        else:
            parts.append(ParameterGroup(begin - first, end - first, optimizer))
    return GroupedOptimizer(parts or [ParameterGroup(0, last - first, whole)])


def check_groups(blueprint: Blueprint) -> None:
    """Refuse a pattern that no parameter has, and settings that the optimizer does not."""
    for group in blueprint.run.optimizer.groups:
        if not any(_fits(entry, group) for entry in blueprint.dense):
            names = ", ".join(entry.name.removeprefix(PREFIX) for entry in blueprint.dense[:6])
            raise TrainingError(
                f"optimizer.groups: no dense parameter is called `{group.pattern}`", hint=f"there are {names}, ..."
            )
    optimizer_of(blueprint)


def _optimizer_for(entry: DenseEntry, blueprint: Blueprint, whole: DenseOptimizer) -> DenseOptimizer:
    """Return what updates a parameter: of the first group whose pattern fits its name."""
    group = next((group for group in blueprint.run.optimizer.groups if _fits(entry, group)), None)
    if group is None:
        return whole
    settings: dict[str, float | str] = {**blueprint.optimizer, **group.settings}
    if group.learning_rate is not None:
        settings["learning_rate"] = group.learning_rate
    return make_dense_optimizer(str(settings.pop("name")), **settings)  # type: ignore[arg-type]


def _fits(entry: DenseEntry, group: RunGroup) -> bool:
    return fnmatchcase(entry.name, group.pattern) or fnmatchcase(entry.name.removeprefix(PREFIX), group.pattern)


def clipped_scale(scale: float, square: float, limit: float) -> float:
    """Return the scale with which a gradient whose sum of squares is `square` has a norm of at most `limit`."""
    return scale * min(1.0, limit / (math.sqrt(square) * scale + 1e-6))


def scale_and_clip(gradients: Tensor, scale: float | Tensor, clip_value: float | None) -> None:
    """Multiply a gradient by `scale`, and clip its numbers."""
    gradients.mul_(scale)
    if clip_value is not None:
        gradients.clamp_(-clip_value, clip_value)


def scale_to_norm(gradients: Tensor, scale: float | Tensor, limit: float) -> None:
    """Multiply a gradient by `scale`, and by less where its norm were above `limit`; nobody waits for the device."""
    norm = gradients.double().square().sum().sqrt() * scale
    gradients.mul_((scale * (limit / (norm + 1e-6)).clamp(max=1.0)).to(gradients.dtype))


def to_device(state: State, device: torch.device) -> dict[str, Tensor]:
    """Return vectors of state as tensors on a device."""
    import torch  # noqa: PLC0415 - servers and coordinators do without

    return {name: torch.from_numpy(vector).to(device) for name, vector in state.items()}


def from_device(state: Mapping[str, Tensor]) -> State:
    """Return vectors of state in host memory."""
    return {name: np.ascontiguousarray(vector.cpu().numpy()) for name, vector in state.items()}
