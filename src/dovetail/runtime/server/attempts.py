"""Gradients of tasks that are not whole yet: each attempt at a task by itself, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.errors import TrainingError

Keys = NDArray[np.int64]
Floats = NDArray[np.float32]
RowGradients = tuple[int, Keys, Floats]
"""The number of a table, keys, and the gradient of each key's row."""
Slice = tuple[int, Floats]
"""Where numbers of the dense gradient begin, and those."""
AttemptKey = tuple[int, int, str]
"""Step (0 in ssp and async), task, and whose attempt it is."""


class BeforeApply(Protocol):
    """Whoever keeps what is applied."""

    def __call__(
        self, task: int, rows: Sequence[RowGradients], dense: Floats | None, *, scale: float, factor: float
    ) -> None:
        """Take in the gradients of a task."""
        ...


@dataclass(slots=True)
class TaskGradients:
    """Gradients of one attempt at a task."""

    rows: list[RowGradients] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    """Of the dense gradient, where that comes in slices."""
    num_parts: int = 0


class Attempts:
    """The attempts that are under way."""

    def __init__(self) -> None:
        """Start without any."""
        self._open: dict[AttemptKey, TaskGradients] = {}

    def __bool__(self) -> bool:
        """Say whether any is under way."""
        return bool(self._open)

    def __contains__(self, key: AttemptKey) -> bool:
        """Say whether one is under way."""
        return key in self._open

    def __iter__(self) -> Iterator[tuple[AttemptKey, TaskGradients]]:
        """Yield those under way."""
        return iter(self._open.items())

    def add(
        self, key: AttemptKey, part: int, rows: Sequence[RowGradients], slices: Sequence[Slice] = ()
    ) -> TaskGradients:
        """Add a part; with its first part an attempt begins anew. Return what there is of it."""
        if part == 0:
            self._open[key] = TaskGradients()
        gradients = self._open.get(key)
        if gradients is None or gradients.num_parts != part:
            raise TrainingError(
                f"part {part} of task {key[1]} of {key[2]} came without those before", hint="a bug: report it"
            )
        gradients.num_parts += 1
        gradients.rows.extend(rows)
        gradients.slices.extend(slices)
        return gradients

    def forget_task(self, step: int, task: int) -> None:
        """Forget all attempts at a task: one of them counts."""
        for key in [key for key in self._open if key[:2] == (step, task)]:
            del self._open[key]

    def clear(self) -> None:
        """Forget all."""
        self._open.clear()


def copied(rows: Sequence[RowGradients]) -> list[RowGradients]:
    """Return gradients in memory of their own: what a message brought is void once it is answered."""
    return [(position, keys.copy(), values.copy()) for position, keys, values in rows]
