"""Row optimizers: how a row and its summed gradient become the next row. A kernel and a frozen value each, by name.

A kernel takes the rows (values, then optimizer state), which of them to change, one gradient a row, and the settings as
float32 numbers; it is serial and lets other threads run. Divisions follow IEEE 754 without a check for zero, so that
the loops run on vectors. All arithmetic is in float32, in the order written: a plain NumPy twin gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.errors import TableError
from dovetail.embedding.kernels.raw_memory import AHEAD, hint_row
from dovetail.errors import did_you_mean

_ONE = np.float32(1)
_ZERO = np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def put(rows, slots, values, width, _settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """W = value; the optimizer's state stays."""
    for i in range(len(slots)):
        row = rows[slots[i]]
        for j in range(width):
            row[j] = values[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def sgd(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """W -= rate g."""
    rate = settings[0]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        for j in range(width):
            row[j] -= rate * gradients[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def adagrad(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """S += g g; w -= rate g / (sqrt(s) + epsilon)."""
    rate, epsilon = settings[0], settings[1]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        for j in range(width):
            g = gradients[i, j]
            total = row[width + j] + g * g
            row[width + j] = total
            row[j] -= rate * g / (np.sqrt(total) + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def row_wise_adagrad(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """S += sum(g g) / width; w -= rate g / (sqrt(s) + epsilon): one number of state a row."""
    rate, epsilon = settings[0], settings[1]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        square = _ZERO
        for j in range(width):
            square += gradients[i, j] * gradients[i, j]
        total = row[width] + square / np.float32(width)
        row[width] = total
        divisor = np.sqrt(total) + epsilon
        for j in range(width):
            row[j] -= rate * gradients[i, j] / divisor


@njit(cache=True, nogil=True, error_model="numpy")
def adam(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """PyTorch's `SparseAdam`, operation by operation; the rate has the correction of the bias, one for all rows."""
    rate, left1, left2, epsilon = settings[0], settings[1], settings[2], settings[3]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        for j in range(width):
            g = gradients[i, j]
            first = row[width + j] + (g - row[width + j]) * left1
            second = row[2 * width + j] + (g * g - row[2 * width + j]) * left2
            row[width + j], row[2 * width + j] = first, second
            row[j] -= rate * (first / (np.sqrt(second) + epsilon))


@njit(cache=True, nogil=True, error_model="numpy")
def adam_per_row(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Adam with a count of its own for every row: moments and powers of beta move when the row has a gradient."""
    rate, beta1, beta2, epsilon = settings[0], settings[1], settings[2], settings[3]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        # The state holds 1 - beta ** t, so that a first state of zeros is t = 0.
        left1 = row[3 * width] * beta1 + (_ONE - beta1)
        left2 = row[3 * width + 1] * beta2 + (_ONE - beta2)
        row[3 * width], row[3 * width + 1] = left1, left2
        for j in range(width):
            g = gradients[i, j]
            first = beta1 * row[width + j] + (_ONE - beta1) * g
            second = beta2 * row[2 * width + j] + (_ONE - beta2) * (g * g)
            row[width + j], row[2 * width + j] = first, second
            row[j] -= rate * (first / left1) / (np.sqrt(second / left2) + epsilon)


@njit(cache=True, nogil=True, error_model="numpy")
def ftrl(rows, slots, gradients, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """FTRL-Proximal (McMahan et al., 2013).

    w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / rate + l2).
    """
    rate, beta, l1, l2 = settings[0], settings[1], settings[2], settings[3]
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        row = rows[slots[i]]
        for j in range(width):
            g = gradients[i, j]
            before = row[2 * width + j]
            after = before + g * g
            root = np.sqrt(after)
            z = row[width + j] + (g - (root - np.sqrt(before)) / rate * row[j])
            row[width + j], row[2 * width + j] = z, after
            if abs(z) <= l1:
                row[j] = _ZERO
            else:
                row[j] = -(z - (l1 if z > 0 else -l1)) / ((beta + root) / rate + l2)


@njit(cache=True, nogil=True, error_model="numpy")
def limit_norms(rows, slots, _, width, settings):  # type: ignore[no-untyped-def]  # pragma: no cover
    """W *= max_norm / (norm + 1e-7) where the norm is above; the gradients are for the step that follows."""
    most, kind = settings[0], settings[1]
    for i in range(len(slots)):
        row = rows[slots[i]]
        norm = 0.0
        for j in range(width):
            size = abs(np.float64(row[j]))
            if kind == np.float32(2):
                norm += size * size
            elif np.isinf(kind):
                norm = max(norm, size)
            else:
                norm += size ** np.float64(kind)
        if kind == np.float32(2):
            norm = np.sqrt(norm)
        elif not np.isinf(kind):
            norm = norm ** (1.0 / np.float64(kind))
        if norm > most:
            scale = np.float32(most / (norm + 1e-7))
            for j in range(width):
                row[j] *= scale


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
        """Return the settings in the order in which the kernel reads them, the rate first."""
        ...

    def rate(self, step: int, factor: float) -> float:
        """Return the rate that the kernel takes in a step, counted from 1, at `factor` times the learning rate."""
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

    def rate(self, step: int, factor: float) -> float:
        """Return the learning rate times `factor`, whatever the step."""
        return self.learning_rate * factor

    @property
    def first_state(self) -> float:
        """Return zero."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(_Settings):
    """w -= rate g; no state."""

    name: ClassVar[str] = "sgd"
    kernel: ClassVar[Kernel] = sgd

    def state_width(self, width: int) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(_Settings):
    """One sum of squares a value."""

    epsilon: float = 1e-10
    first_sum: float = 0.0
    name: ClassVar[str] = "adagrad"
    kernel: ClassVar[Kernel] = adagrad

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
    kernel: ClassVar[Kernel] = row_wise_adagrad

    @property
    def first_state(self) -> float:
        """Return the first mean of squares."""
        return self.first_sum

    def state_width(self, width: int) -> int:
        """Return 1."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdamSettings(_Settings):
    """The settings of both kinds of Adam."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse betas of 1 and above."""
        _Settings.__post_init__(self)
        if max(self.beta1, self.beta2) >= 1:
            raise TableError(f"Adam has beta1 = {self.beta1}, beta2 = {self.beta2}", hint="both are below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(_AdamSettings):
    """PyTorch's `SparseAdam`: rows without a gradient stand still, and the bias is corrected by the step of the run."""

    name: ClassVar[str] = "adam"
    kernel: ClassVar[Kernel] = adam

    def settings(self) -> NDArray[np.float32]:
        """Return what of the moments is new in a step, taken in float64 as PyTorch does, and epsilon."""
        return np.array([self.learning_rate, 1 - self.beta1, 1 - self.beta2, self.epsilon], dtype=np.float32)

    def rate(self, step: int, factor: float) -> float:
        """Return the rate with the correction of both moments' bias: sqrt(1 - beta2 ** step) / (1 - beta1 ** step)."""
        return self.learning_rate * factor * math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)

    def state_width(self, width: int) -> int:
        """Return two moments a value."""
        return 2 * width


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamPerRow(_AdamSettings):
    """Adam that corrects a row's bias by how often the row itself was stepped: a rare row's first steps are long."""

    name: ClassVar[str] = "adam-per-row"
    kernel: ClassVar[Kernel] = adam_per_row

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
    kernel: ClassVar[Kernel] = ftrl

    def state_width(self, width: int) -> int:
        """Return z and n a value."""
        return 2 * width


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSGD:
    """SGD whose rows owe noise: one number of state a row says at which step it was settled; see `privacy.owed`."""

    learning_rate: float = 0.05
    deviation: float = 0.0
    """By how much a step at the whole rate moves every number of every row."""
    schedule: str = ""
    """By what the rate changes from step to step, as whoever trains has it in words."""
    stream: str = ""
    """Which noise it is."""
    first_step: int = 0
    """After which step that noise begins."""
    looks: tuple[tuple[int, float, str], ...] = ()
    """When the whole table was saved; see `privacy.owed.Look`."""
    name: ClassVar[str] = "private-sgd"
    kernel: ClassVar[Kernel] = sgd

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        SGD(learning_rate=self.learning_rate)
        object.__setattr__(self, "looks", tuple((step, variance, name) for step, variance, name in self.looks))

    def settings(self) -> NDArray[np.float32]:
        """Return the rate."""
        return np.array([self.learning_rate], dtype=np.float32)

    def rate(self, step: int, factor: float) -> float:
        """Return the learning rate times `factor`, whatever the step."""
        return self.learning_rate * factor

    @property
    def first_state(self) -> float:
        """Return 0: a new row owes noise from the first step on."""
        return 0.0

    def state_width(self, width: int) -> int:
        """Return 1."""
        return 1


ROW_OPTIMIZERS: dict[str, type[SGD | PrivateSGD | Adagrad | RowWiseAdagrad | Adam | AdamPerRow | FTRL]] = {
    kind.name: kind for kind in (SGD, PrivateSGD, Adagrad, RowWiseAdagrad, Adam, AdamPerRow, FTRL)
}


def make_row_optimizer(name: str, **settings: Any) -> RowOptimizer:
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
