"""Samples that lie in memory, all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.packed import PackedSamples, viewed
from dovetail.data.schema import Schema


class InMemory:
    """The samples of one batch, whose ids are their numbers; broken ones are left out, and keep their number."""

    def __init__(self, batch: Batch, schema: Schema, num_samples: int) -> None:
        """Keep the batch, of `num_samples` with the broken ones."""
        self._batch, self.schema, self.num_samples = batch, schema, num_samples
        self._packed: PackedSamples | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out where things lie in the memory of this process."""
        return {**self.__dict__, "_packed": None}

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`, broken ones left out."""
        if not 0 <= first <= last:
            raise DataError(f"samples {first} to {last} were asked for", hint="ask for 0 <= first <= last")
        if self._batch.num_samples == self.num_samples:
            return self._batch.slice(min(first, self.num_samples), min(last, self.num_samples))
        begin, end = torch.searchsorted(self._batch.sample_ids, torch.tensor([first, last])).tolist()
        return self._batch.slice(begin, end)

    def gather(self, samples: NDArray[np.int64], *, shift: int = 0, pin: bool = False) -> Batch:
        """Return samples by their numbers, in that order, broken ones left out; `shift` is added to their ids."""
        from dovetail.data.assembling import assemble  # noqa: PLC0415 - compiles, and only who shuffles needs it

        if self._packed is None:
            slots = self.schema.num_slots
            self._packed = viewed(self._batch, first=0, last=self.num_samples, num_slots=slots)
        return assemble(samples, [self._packed], np.zeros(1, dtype=np.int64), shift=shift, pin=pin)
