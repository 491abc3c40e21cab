"""Row optimizers: how a row and its gradient become the next row. One frozen value each, and a registry of names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import row_kernels
from dovetail.embedding.errors import TableError
from dovetail.errors import did_you_mean

Kernel = Callable[[Any, Any, Any, int, Any], None]


class RowOptimizer(Protocol):
    """What a table needs of an optimizer: the width of its state, its first state, its settings and its kernel."""

    name: ClassVar[str]
    kernel: ClassVar[Kernel]

    def state_width(self, width: int) -> int:
        """Return how many float32 numbers of state a row of `width` values carries."""
        ...

    @property
    def first_state(self) -> float:
        """Return what every number of a new row's state is."""
        ...

    def settings(self) -> NDArray[np.float32]:
        """Return the settings in the order in which the kernel reads them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Settings that are finite numbers, not below zero; `learning_rate` is above zero."""

    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        for name, value in asdict(self).items():
            if not math.isfinite(value) or value < 0 or (name == "learning_rate" and value == 0):
                raise TableError(f"a row optimizer has {name} = {value}", hint="give a finite number above zero")

    def settings(self) -> NDArray[np.float32]:
        """Return the settings in the order in which they are declared."""
        return np.array(list(asdict(self).values()), dtype=np.float32)

    @property
    def first_state(self) -> float:
        """Return zero."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(_Settings):
    """w -= rate g; no state."""

    name: ClassVar[str] = "sgd"
    kernel: ClassVar[Kernel] = row_kernels.sgd

    def state_width(self, width: int) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(_Settings):
    """One sum of squares a value."""

    epsilon: float = 1e-10
    first_sum: float = 0.0
    name: ClassVar[str] = "adagrad"
    kernel: ClassVar[Kernel] = row_kernels.adagrad

    @property
    def first_state(self) -> float:
        """Return the first sum of squares."""
        return self.first_sum

    def state_width(self, width: int) -> int:
        """Return one number a value."""
        return width


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWiseAdagrad(_Settings):
    """One mean of squares a row: nearly no memory."""

    epsilon: float = 1e-10
    first_sum: float = 0.0
    name: ClassVar[str] = "row-wise-adagrad"
    kernel: ClassVar[Kernel] = row_kernels.row_wise_adagrad

    @property
    def first_state(self) -> float:
        """Return the first mean of squares."""
        return self.first_sum

    def state_width(self, width: int) -> int:
        """Return 1."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(_Settings):
    """Lazy Adam: rows without a gradient stand still."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    name: ClassVar[str] = "adam"
    kernel: ClassVar[Kernel] = row_kernels.adam

    def __post_init__(self) -> None:
        """Refuse betas of 1 and above."""
        _Settings.__post_init__(self)
        if max(self.beta1, self.beta2) >= 1:
            raise TableError(f"Adam has beta1 = {self.beta1}, beta2 = {self.beta2}", hint="both are below 1")

    def state_width(self, width: int) -> int:
        """Return two moments a value and two powers of the betas."""
        return 2 * width + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FTRL(_Settings):
    """FTRL-Proximal: rows whose gradients do not add up become exactly zero."""

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    name: ClassVar[str] = "ftrl"
    kernel: ClassVar[Kernel] = row_kernels.ftrl

    def state_width(self, width: int) -> int:
        """Return z and n a value."""
        return 2 * width


ROW_OPTIMIZERS: dict[str, type[SGD | Adagrad | RowWiseAdagrad | Adam | FTRL]] = {
    kind.name: kind for kind in (SGD, Adagrad, RowWiseAdagrad, Adam, FTRL)
}


def make_row_optimizer(name: str, **settings: float) -> RowOptimizer:
    """Return the optimizer called `name`."""
    if name not in ROW_OPTIMIZERS:
        raise TableError(f"there is no row optimizer `{name}`", hint=did_you_mean(name, ROW_OPTIMIZERS))
    try:
        return ROW_OPTIMIZERS[name](**settings)
    except TypeError:
        raise TableError(
            f"`{name}` does not have the settings {', '.join(settings)}",
            hint=f"it has {', '.join(ROW_OPTIMIZERS[name].__dataclass_fields__)}",
        ) from None


def described(optimizer: RowOptimizer) -> dict[str, Any]:
    """Return an optimizer as plain values for a file; `make_row_optimizer(**described(o))` is `o` again."""
    return {"name": optimizer.name, **asdict(optimizer)}  # type: ignore[call-overload]
