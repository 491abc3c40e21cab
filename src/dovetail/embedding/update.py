"""Updating rows: the gradients of each distinct row are summed in the order of the batch, then the row is stepped."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.checkpoints.saving import Saver
from dovetail.embedding.kernels import batches
from dovetail.embedding.row_optimizer import RowOptimizer, limit_norms, put
from dovetail.embedding.store import TieredStore, Whereabouts


class Update:
    """Steps rows of a store; whoever calls holds the store's lock."""

    def __init__(self, store: TieredStore, saver: Saver, optimizer: RowOptimizer) -> None:
        """Step rows by `optimizer`; what a checkpoint under way still needs goes to `saver` first."""
        self._store, self._saver = store, saver
        self._optimizer = optimizer
        self._kernel, self._settings = type(optimizer).kernel, optimizer.settings()
        self._step_number: int | None = None
        self._factor = 1.0
        self._limit: NDArray[np.float32] | None = None
        self._sums = np.empty((0, store.width), dtype=np.float32)

    def begin_step(self, step: int | None, factor: float) -> None:
        """Have what follows be a step of that number, at `factor` times the rate; None: updates are counted."""
        self._step_number, self._factor = step, factor

    def limit_norms(self, max_norm: float, norm_type: float) -> None:
        """Scale rows down to a norm before they are stepped."""
        self._limit = np.array([max_norm, norm_type], dtype=np.float32)

    def fill(self, keys: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Give distinct keys' rows these values, and the state of new rows."""
        width = self._store.width
        rows = np.empty((len(keys), width + self._optimizer.state_width(width)), dtype=np.float32)
        rows[:, :width], rows[:, width:] = values, self._optimizer.first_state
        self._store.put(keys, rows)

    def write(self, keys: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Give distinct keys' rows these values and leave their state, in halves where they do not fit at once."""
        slots = self._store.find_distinct(keys)
        if slots is not None:
            self._saver.keep_at(slots)
            self._store.step(slots, values, put, self._settings, scale=1.0)
            return
        middle = len(keys) // 2
        self.write(keys[:middle], values[:middle])
        self.write(keys[middle:], values[middle:])

    def bags(
        self,
        keys: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        gradients: NDArray[np.float32],
        *,
        mean: bool,
    ) -> None:
        """Step the rows of bags, one after the other, that hold all keys."""
        held = self._store.hold(keys, insert=True)
        if held is not None:
            sums = self._sums_for(len(held.unique))
            batches.sum_gradients(held.codes, begins, ends, gradients, mean, sums)
            self._step(held.unique, sums, scale=1.0)
        else:
            distinct, inverse = np.unique(keys, return_inverse=True)
            sums = np.full((len(distinct), self._store.width), -0.0, dtype=np.float32)
            batches.add_at(sums, inverse, begins, ends, gradients, mean)
            self._step_distinct(distinct, sums, 1.0, None)
        self._store.clock.step += 1

    def distinct(
        self, keys: NDArray[np.int64], gradients: NDArray[np.float32], *, scale: float, where: Whereabouts | None
    ) -> None:
        """Step the rows of keys that are all different: there is nothing to sum. `where` they lay may still hold."""
        slots = where.slots if where is not None and where.as_of == self._store.as_of else None
        self._step_distinct(keys, gradients, scale, slots)
        self._store.clock.step += 1

    def _step_distinct(
        self, keys: NDArray[np.int64], gradients: NDArray[np.float32], scale: float, slots: NDArray[np.int32] | None
    ) -> None:
        """Step distinct rows, in halves where they do not fit at once."""
        slots = self._store.find_distinct(keys) if slots is None else slots
        if slots is not None:
            self._step(slots, gradients, scale=scale)
            return
        middle = len(keys) // 2
        self._step_distinct(keys[:middle], gradients[:middle], scale, None)
        self._step_distinct(keys[middle:], gradients[middle:], scale, None)

    def _sums_for(self, num_rows: int) -> NDArray[np.float32]:
        """Return room for the sums of a batch, the same memory each time."""
        if len(self._sums) < num_rows:
            self._sums = np.empty((num_rows, self._store.width), dtype=np.float32)
        return self._sums[:num_rows]

    def _step(self, slots: NDArray[np.int32], gradients: NDArray[np.float32], *, scale: float) -> None:
        """Step distinct rows in the host tier."""
        self._saver.keep_at(slots)
        if self._limit is not None:
            self._store.step(slots, gradients, limit_norms, self._limit, scale=1.0)
        step = self._store.clock.step + 1 if self._step_number is None else self._step_number
        self._store.settle(slots, step)
        self._settings[0] = self._optimizer.rate(step, self._factor)
        self._store.step(slots, gradients, self._kernel, self._settings, scale=scale)
