"""Gradients of the step under way in `sync`: of every task one attempt counts, and is summed as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.embedding import Whereabouts
from dovetail.runtime.dense.kernels import add_into, sum_of_squares
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.server.attempts import Attempts, Floats, RowGradients, Slice, TaskGradients, copied
from dovetail.runtime.server.gradient_sums import GradientSums


@dataclass(frozen=True, slots=True)
class WholeStep:
    """What all gradients of a step come to: the sums of rows, by table, that of the dense gradient, where there is any.

    And the running statistics of norms as they are once the step counts, on the server that keeps them.
    """

    rows: Sequence[RowGradients]
    dense: Floats | None
    norms: Floats | None = None


class StepSums:
    """The sums of rows by table, and that of the dense gradient."""

    def __init__(self, widths: Sequence[int], dense_size: int, *, sliced: bool = False) -> None:
        """Start at zero; dense gradients that come `sliced` are kept until the step is committed, as those of rows."""
        self._sliced = sliced
        self._sums = [GradientSums(width) for width in widths]
        self._spare = [GradientSums(width) for width in widths]
        self.dense = np.zeros(dense_size, dtype=np.float32)
        self._dense_square: float | None = None
        self._attempts = Attempts()
        self._counting: dict[int, str] = {}
        """Whose attempt at each task is in the sums."""
        self._kept: dict[int, TaskGradients] = {}
        """The gradients of tasks that are whole, until the step is committed."""

    def push(
        self, step: int, task: int, worker: str, *, part: int, rows: Sequence[RowGradients],
        dense: Floats | None, last: bool, wheres: Sequence[Whereabouts | None] = (), first: int = -1,
    ) -> bool:  # fmt: skip
        """Take in a part of an attempt at a task that is not whole; True where that makes it whole.

        `wheres` says of `rows` where the tables have them. The dense gradient is whole, or a slice of it from `first`.
        """
        if first >= 0 and not self._sliced:
            raise TrainingError(f"{worker} pushed a slice of what goes in one piece", hint="a bug: report it")
        again = part == 0 and (step, task, worker) in self._attempts
        copies = copied(rows)
        slices = [(max(0, first), dense.copy())] if dense is not None and self._sliced else []
        gradients = self._attempts.add((step, task, worker), part, copies, slices)
        if last and self._sliced and sum(len(each) for _, each in gradients.slices) != len(self.dense):
            raise TrainingError(f"slices of task {task} of {worker} are not all of it", hint="a bug: report it")
        if self._counting.setdefault(task, worker) == worker and not again:
            self._add_up(copies, wheres)
            self._add_slices(slices)
        if not last:
            if again:
                self._add_up_anew()
            return False
        if dense is not None and not self._sliced:
            self._add_dense(dense)
        self._kept[task] = gradients
        changed = again or self._counting[task] != worker
        self._counting[task] = worker
        self._attempts.forget_task(step, task)
        if changed:
            self._add_up_anew()
        return True

    def _add_slices(self, slices: Sequence[Slice]) -> None:
        """Add slices to the sum of dense gradients."""
        for first, dense in slices:
            add_into(self.dense[first : first + len(dense)], dense)
            self._dense_square = None

    def _add_dense(self, dense: Floats) -> None:
        """Add to the sum of dense gradients."""
        add_into(self.dense, dense)
        self._dense_square = None

    def dense_square(self) -> float:
        """Return the sum of squares of the dense gradient, taken once while that does not change."""
        if self._dense_square is None:
            self._dense_square = float(sum_of_squares(self.dense))
        return self._dense_square

    def _add_up(self, rows: Sequence[RowGradients], wheres: Sequence[Whereabouts | None] = ()) -> None:
        """Add gradients to the sums of the step."""
        for (position, keys, values), where in zip(rows, wheres or [None] * len(rows), strict=True):
            self._sums[position].add(keys, values, where)

    def _add_up_anew(self) -> None:
        """Take the sums again: another attempt at a task than the one in them is the one that counts."""
        for sums in self._sums:
            sums.clear()
        if self._sliced:
            self.dense[:] = 0
            self._dense_square = None
        under_way = [gradients for (_, task, worker), gradients in self._attempts if self._counting.get(task) == worker]
        for gradients in (*self._kept.values(), *under_way):
            self._add_up(gradients.rows)
            self._add_slices(gradients.slices)

    def rows(self) -> list[RowGradients]:
        """Return the sums of rows, by table, those of attempts that came to nothing left out; to be read at once."""
        self._leave_out_attempts()
        return [
            (position, sums.keys[: sums.count], sums.sums[: sums.count]) for position, sums in enumerate(self._sums)
        ]

    def put(self, rows: Sequence[RowGradients], dense: Floats | None) -> None:
        """Add sums of a whole step."""
        self._add_up(rows)
        if dense is not None:
            self._add_dense(dense)

    def take_rows(self, applied: list[GradientSums] | None) -> list[GradientSums]:
        """Return the sums of rows, those of attempts that came to nothing left out; `applied` are used for the next."""
        self._leave_out_attempts()
        taken, self._sums = self._sums, applied or self._spare
        return taken

    def _leave_out_attempts(self) -> None:
        """Take attempts out of the sums that came to nothing: the step is whole without."""
        if self._attempts:
            self._attempts.clear()
            self._add_up_anew()

    def start_anew(self) -> None:
        """Forget the tasks of the step, and the dense gradient."""
        self._attempts.clear()
        self._counting.clear()
        self._kept.clear()
        self.dense[:] = 0
        self._dense_square = None

    def discard(self) -> None:
        """Forget everything."""
        self.start_anew()
        for sums in self._sums:
            sums.clear()
