"""Dense optimizers: how a flat vector of parameters and its gradient become the next vector.

One frozen value each, and a registry of names. A server steps the slice that it holds; slices of one vector step apart
and give the bits of the whole.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import did_you_mean
from dovetail.runtime.dense import kernels
from dovetail.runtime.errors import TrainingError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(DenseOptimizer):
    """w -= rate g; no state."""

    name: ClassVar[str] = "sgd"
    kernel: ClassVar[Kernel] = kernels.sgd

    def numbers(self, rate: float, step_number: int) -> tuple[float, ...]:
        """Return the rate and the settings."""
        return (rate,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(DenseOptimizer):
    """v = momentum v + g; w -= rate v."""

    momentum: float = 0.9
    name: ClassVar[str] = "momentum"
    kernel: ClassVar[Kernel] = kernels.momentum
    vectors: ClassVar[tuple[str, ...]] = ("velocity",)

    def numbers(self, rate: float, step_number: int) -> tuple[float, ...]:
        """Return the rate and the settings."""
        return rate, self.momentum


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(DenseOptimizer):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(DenseOptimizer):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled decay (Loshchilov and Hutter, 2019): w = (1 - rate weight_decay) w, then Adam."""

    weight_decay: float = 0.01
    name: ClassVar[str] = "adamw"

    def _kept(self, rate: float) -> float:
        return 1 - rate * self.weight_decay


DENSE_OPTIMIZERS: dict[str, type[DenseOptimizer]] = {kind.name: kind for kind in (SGD, Momentum, Adagrad, Adam, AdamW)}


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
