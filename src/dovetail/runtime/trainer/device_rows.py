"""Rows of tables that lie on the device where the model is, as tensors that gradients flow back to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.worker.rows.batch_rows import BatchRows, Check

if TYPE_CHECKING:
    from dovetail.embedding.tiers.device.table import DeviceBatch, DeviceTable


class DeviceRows(BatchRows):
    """The look-ups of the batch that is being computed, and those that are announced for the next ones."""

    def __init__(self, tables: Sequence[DeviceTable]) -> None:
        """Look up in tables, by their numbers."""
        super().__init__(1, tables[0].device if tables else torch.device("cpu"))
        self._tables = tables
        self._looked_up: list[tuple[int, Tensor, DeviceBatch, Tensor]] = []
        self._announced: list[Counter[int]] = []
        self.waited_s = 0.0
        """How long look-ups took, which is mostly waiting for their rows."""

    def announce(self, asked: Sequence[tuple[int, NDArray[np.int64]]]) -> None:
        """Have the rows of a batch to come brought to the device."""
        for table, keys in asked:
            self._tables[table].announce(keys)
        self._announced.append(Counter(table for table, _ in asked))

    def source(self, table: int, check: Check = lambda _: None) -> DeviceSource:
        """Return one table as a model's `row_source`; `check` refuses keys that it has no row for."""
        return DeviceSource(table, self, check)

    def values(self, table: int, keys: Tensor) -> Tensor:
        """Return one vector a key."""
        if not torch.is_grad_enabled():
            return self._tables[table].look_up(keys, insert=False).values()
        begun_s = time.perf_counter()
        batch = self._tables[table].look_up(keys)
        self.waited_s += time.perf_counter() - begun_s
        values = batch.values().requires_grad_()
        self._looked_up.append((table, keys, batch, values))
        return values

    def step(self, number: int, *, scale: float, factor: float) -> None:
        """Step the rows by the gradients that have come, times `scale`; a row that was looked up twice steps once.

        The first step has the number 1.
        """
        for position, table in enumerate(self._tables):
            mine = [(keys, batch, values.grad) for of, keys, batch, values in self._looked_up if of == position]
            wanted = [(keys, batch, gradient) for keys, batch, gradient in mine if gradient is not None]
            table.stepper.begin_step(number, factor)
            if len(wanted) == 1:
                _, batch, gradient = wanted[0]
                batch.step(gradient * scale)
            elif wanted:
                table.update(torch.cat([keys for keys, _, _ in wanted]), torch.cat([g for _, _, g in wanted]) * scale)
            for _, batch, _ in mine:
                batch.release()
        self._looked_up = []
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Forget what was announced for this batch and not looked up."""
        if self._announced:
            self._announced.pop(0)
        later = sum(self._announced, Counter())
        for number, table in enumerate(self._tables):
            while table.num_ahead > later[number]:
                table.skip()


class DeviceSource:
    """One table as a model's `row_source`."""

    def __init__(self, table: int, rows: DeviceRows, check: Check) -> None:
        """Keep which table this is, and what refuses keys that it has no row for."""
        self._table, self._rows, self._check = table, rows, check

    def look_up(self, keys: Tensor, offsets: Tensor, mode: str) -> Tensor:
        """Return one pooled vector a bag."""
        values = self._values(keys)
        if len(offsets) - 1 == len(values) and bool((offsets.diff() == 1).all()):
            return values
        places = torch.arange(len(values), device=values.device)
        return functional.embedding_bag(places, values, offsets.to(values.device), mode=mode, include_last_offset=True)

    def rows(self, keys: Tensor) -> Tensor:
        """Return one vector a key, whatever the shape of `keys`."""
        return self._values(keys.reshape(-1)).view(*keys.shape, -1)

    def _values(self, keys: Tensor) -> Tensor:
        keys = keys.to(torch.int64)
        self._check(keys)
        return self._rows.values(self._table, keys)


def doors_of(tables: Sequence[object]) -> list[DeviceTable]:
    """Return the rows on a device of tables that all have them."""
    doors = [getattr(table, "on_device", None) for table in tables]
    if None in doors:
        raise TrainingError("a table has no rows on a device", hint="a bug: report it")
    return doors  # type: ignore[return-value]
