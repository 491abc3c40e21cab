"""Sums of what workers bring under masks: a server holds the rows that a step has, and one sum modulo 2^32.

No sockets: whoever waits is a value that is handed back. What a worker brings is added to the sum at once, and makes
sense when those of all members are in it: until then, and by itself, it is as good as random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.masking.fixed_point import LIMBS, FixedPoint, Words, loss_of
from dovetail.runtime.messages import Agree, MaskedPush
from dovetail.runtime.server.gradients import Keys, RowGradients, TaskPart

Answers = list[tuple[Any, list[Keys]]]
"""Who waited, and the keys of each table."""
BUG = "a bug: report it"


@dataclass(frozen=True, slots=True)
class SummedStep:
    """The gradients of a step as one task, and what each member said of its own."""

    part: TaskPart
    pushes: tuple[MaskedPush, ...]
    loss: float
    """Of all of them."""


@dataclass(slots=True)
class _Step:
    """The step under way."""

    number: int
    members: tuple[str, ...]
    asked: dict[str, list[Keys]] = field(default_factory=dict)
    waiting: list[Any] = field(default_factory=list)
    keys: list[Keys] | None = None
    """Those of each table that were agreed on."""
    total: Words = field(default_factory=lambda: np.empty(0, dtype=np.uint32))
    pushes: dict[str, MaskedPush] = field(default_factory=dict)


class MaskedSums:
    """The step under way at one server."""

    def __init__(self, widths: Sequence[int], num_dense: int, *, reach: float) -> None:
        """Add up rows of tables of such `widths` and so many dense numbers, none beyond `reach`."""
        self._widths, self._num_dense, self._reach = tuple(widths), num_dense, reach
        self._step: _Step | None = None

    def discard(self) -> None:
        """Forget the step under way: whoever waits is told by the coordinator."""
        self._step = None

    def agree(self, message: Agree, keys: Sequence[NDArray[Any]], who: Any) -> Answers:
        """Take in a worker's keys; return who can be answered now."""
        step, name = self._step_of(message), _name_of(message)
        if len(keys) != len(self._widths) or any(each.dtype != np.int64 or each.ndim != 1 for each in keys):
            raise TrainingError(f"{name} brought keys of {len(keys)} tables", hint=BUG)
        if step.keys is not None:
            return [(who, step.keys)]
        step.asked[name] = [each.copy() for each in keys]
        step.waiting.append(who)
        if len(step.asked) < len(step.members):
            return []
        step.keys = [np.unique(np.concatenate(each)) for each in zip(*step.asked.values(), strict=True)]
        step.total = np.zeros(self._num_words(step.keys), dtype=np.uint32)
        waiting, step.waiting = step.waiting, []
        step.asked.clear()
        return [(each, step.keys) for each in waiting]

    def push(self, message: MaskedPush, words: NDArray[Any]) -> SummedStep | None:
        """Add what a worker brings; return the step once all members' are there."""
        step, name = self._step_of(message), _name_of(message)
        if step.keys is None or words.dtype != np.int32 or words.shape != step.total.shape:
            raise TrainingError(f"{name} brought {words.dtype} {words.shape} under masks", hint=BUG)
        if name in step.pushes:
            return None
        step.total += words.view(np.uint32)
        step.pushes[name] = message
        return self._summed(step, step.keys) if len(step.pushes) == len(step.members) else None

    def _summed(self, step: _Step, keys: Sequence[Keys]) -> SummedStep:
        """Return what the sum of a whole step stands for."""
        fixed, at = FixedPoint(self._reach, len(step.members)), 0
        rows: list[RowGradients] = []
        for table, (each, width) in enumerate(zip(keys, self._widths, strict=True)):
            size = len(each) * width
            if size:
                rows.append((table, each, fixed.decode(step.total[at : at + size]).reshape(-1, width)))
            at += size
        dense = fixed.decode(step.total[at : at + self._num_dense]) if self._num_dense else None
        pushes = tuple(sorted(step.pushes.values(), key=lambda each: each.task))
        loss = loss_of(step.total[at + self._num_dense :], len(pushes))
        part = TaskPart(step.number, pushes[0].task, "sum", rows=rows, dense=dense)
        self.discard()
        return SummedStep(part, pushes, loss)

    def _step_of(self, message: Agree | MaskedPush) -> _Step:
        """Return the step that a message is of; all members say the same of it."""
        if self._step is None:
            if not isinstance(message, Agree):
                raise TrainingError(f"{message.worker} brought gradients that nobody agreed on", hint=BUG)
            self._step = _Step(message.step, message.members)
        step = self._step
        if (step.number, step.members) != (message.step, message.members) or _name_of(message) not in step.members:
            raise TrainingError(
                f"{_name_of(message)} is at step {message.step} with {len(message.members)} workers, others are at "
                f"{step.number} with {len(step.members)}",
                hint=BUG,
            )
        return step

    def _num_words(self, keys: Sequence[Keys]) -> int:
        rows = sum(len(each) * width for each, width in zip(keys, self._widths, strict=True))
        return rows + self._num_dense + LIMBS


def _name_of(message: Agree | MaskedPush) -> str:
    return message.worker.partition("/")[0]
