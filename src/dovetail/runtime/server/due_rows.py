"""Sums of the step that was committed last: applied to the rows that workers ask for first, and to others in time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import Table
from dovetail.runtime.server.gradient_sums import GradientSums, Keys, Taken


class DueRows:
    """What is not applied yet; nobody can see a row that is not up to date."""

    def __init__(self, threads: int) -> None:
        """Start with nothing due; so many threads of a table share what is applied at once."""
        self._threads = threads
        self._tables: Sequence[Table] = ()
        self._sums: list[GradientSums] = []
        self._scale, self._factor = 1.0, 1.0
        self.is_settled = True
        self.num_applied = 0

    def spare(self) -> list[GradientSums] | None:
        """Return sums that are all applied, empty, to be used again; None where there were none."""
        for sums in self._sums:
            sums.clear()
        return self._sums or None

    def begin(self, tables: Sequence[Table], sums: list[GradientSums], *, scale: float, factor: float) -> None:
        """Take the sums of a step: each times `scale`, with `factor` times the learning rate."""
        self._tables, self._sums, self._scale, self._factor = tables, sums, scale, factor
        self.is_settled = not any(each.count for each in sums)

    def forget(self) -> None:
        """Drop everything: the tables are others now."""
        self._sums, self.is_settled = [], True

    def changed_since(self, position: int, keys: Keys, num_steps: int) -> NDArray[np.int32]:
        """Return which of a table's keys the last so many steps may have changed: all, where that is not known."""
        if num_steps <= 0:
            return np.empty(0, dtype=np.int32)
        if num_steps == 1 and self._sums:
            return self._sums[position].changed(keys)
        return np.arange(len(keys), dtype=np.int32)  # more than one step ago, or before the run went back

    def apply_of(self, position: int, keys: Keys) -> None:
        """Bring the rows of some keys up to date."""
        if not self.is_settled:
            self._apply(position, self._sums[position].take(keys))

    def apply_changed(self, position: int, keys: Keys) -> NDArray[np.int32] | None:
        """Bring the rows up to date that the step has changed; return which of the keys' they are, as `changed`."""
        if not self._sums:
            return None
        positions, due = self._sums[position].take_changed(keys)
        self._apply(position, due)
        return positions

    def settle_some(self, most: int) -> None:
        """Apply some of what is due, so many rows a thread."""
        for position, sums in enumerate(self._sums):
            taken = sums.take_some(most * self._threads)
            if len(taken.keys):
                self._apply(position, taken)
                return
        self.is_settled = True

    def settle(self) -> None:
        """Apply all of it."""
        while not self.is_settled:
            self.settle_some(1 << 16)

    def _apply(self, position: int, due: Taken) -> None:
        """Step rows."""
        if len(due.keys):
            table = self._tables[position]
            table.set_rate_factor(self._factor)
            table.update_distinct(due.keys, due.values, scale=self._scale, where=due.where)
            self.num_applied += len(due.keys)
