"""The data file of the comparisons as a source of Dovetail's: all samples in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dovetail.data import Batch, Schema, Slot


class MemorySource:
    """Samples of a .npz file that `make_data.py` wrote, one id a slot."""

    def __init__(self, file: Path) -> None:
        """Say where the file is; it is read by the process that first needs it."""
        self._file = file
        self._arrays: tuple[torch.Tensor, ...] | None = None
        with np.load(file) as arrays:
            self._num_samples, self._num_slots = arrays["ids"].shape
            self._num_dense = arrays["dense"].shape[1]

    def __getstate__(self) -> dict[str, object]:
        """Leave the samples out: each process reads them itself."""
        return self.__dict__ | {"_arrays": None}

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        slots = tuple(Slot(name=f"slot{number}") for number in range(self._num_slots))
        return Schema(slots=slots, dense=tuple(f"number{number}" for number in range(self._num_dense)))

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return int(self._num_samples)

    def read(self, first: int, last: int) -> Batch:
        """Return samples, as views where that can be."""
        if self._arrays is None:
            with np.load(self._file) as arrays:
                self._arrays = (
                    torch.from_numpy(arrays["ids"]),
                    torch.from_numpy(arrays["dense"]),
                    torch.from_numpy(arrays["labels"]).float(),
                )
        ids, dense, labels = self._arrays
        count = last - first
        return Batch(
            sample_ids=torch.arange(first, last),
            dense=dense[first:last],
            ids=ids[first:last].reshape(-1),
            offsets=torch.arange(0, count * self._num_slots + 1),
            labels=labels[first:last],
        )
