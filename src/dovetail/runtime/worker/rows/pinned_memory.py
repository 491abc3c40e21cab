"""Host memory that a worker's device copies from and to: page-locked where that is a GPU, so that copies are fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.runtime.worker.rows.keys import LookUp

Floats = NDArray[np.float32]
Number = TypeVar("Number", np.int32, np.int64)


class PinnedMemory:
    """Where numbers wait that come from servers."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Have memory for a device; without one, or for a CPU, any will do."""
        self.is_locked = device is not None and device.type == "cuda"

    def lock(self, look_up: LookUp) -> LookUp:
        """Return a look-up whose numbers a device can have fast."""
        if not self.is_locked:
            return look_up
        return replace(look_up, asked=_locked(look_up.asked), places=_locked(look_up.places))

    def lock_batch(self, batch: Batch) -> Batch:
        """Return a batch that a device can have fast."""
        return batch.pinned() if self.is_locked else batch

    def floats(self, *shape: int) -> Floats:
        """Return numbers that are not written yet."""
        if not self.is_locked:
            return np.empty(shape, dtype=np.float32)
        return torch.empty(shape, dtype=torch.float32, pin_memory=True).numpy()


def _locked(array: NDArray[Number]) -> NDArray[Number]:
    locked: NDArray[Number] = torch.from_numpy(array).pin_memory().numpy()
    return locked


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return an array on a device; from page-locked memory it is copied behind what the device does now.

    Whoever gives it keeps it until the device has come so far.
    """
    return torch.from_numpy(array).to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Floats]:
    """Return numbers of a device in host memory, once they are there; those of a CPU are where they are."""
    if not any(each.is_cuda for each in tensors):
        return [each.detach().contiguous().numpy() for each in tensors]
    there = [torch.empty(each.shape, dtype=torch.float32, pin_memory=True) for each in tensors]
    for mine, each in zip(there, tensors, strict=True):
        mine.copy_(each.detach(), non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return [each.numpy() for each in there]
