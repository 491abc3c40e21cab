"""A worker's inputs on their way to its device: begun while the servers are still asked, waited for when needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.runtime.worker.keys import LookUp
from dovetail.runtime.worker.row_source import OnDevice

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A micro-batch on the device, with its look-ups; `wait` before any of it is used."""

    batch: Batch
    look_ups: list[OnDevice]
    wait: Callable[[], None]


class Upload:
    """Brings inputs to a device beside what is computed there; one thread uses it."""

    def __init__(self, device: torch.device) -> None:
        """Copy to a GPU on a stream of its own, out of page-locked memory."""
        self._device, self._pins = device, device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._pins else None  # type: ignore[no-untyped-call]

    def empty(self, shape: tuple[int, ...]) -> Floats:
        """Return memory for float32 numbers from which the device copies without help."""
        return torch.empty(shape, pin_memory=self._pins).numpy()

    def batch(self, batch: Batch) -> Batch:
        """Begin to bring samples there."""
        with self._beside():
            there = (batch.pinned() if self._pins else batch).to(self._device, non_blocking=True)
        for tensor in there.tensors():
            self._is_used(tensor)
        return there

    def keys(self, look_ups: Sequence[LookUp]) -> list[tuple[Tensor, Tensor]]:
        """Begin to bring there what look-ups ask for, and which of their rows is whose."""
        return [(self._array(each.asked), self._array(each.places, torch.int64)) for each in look_ups]

    def rows(self, batch: Batch, keys: Sequence[tuple[Tensor, Tensor]], rows: Sequence[Floats]) -> Uploaded:
        """Begin to bring there the rows of look-ups, and return all that is on its way."""
        with self._beside():
            there = [torch.from_numpy(each).to(self._device, non_blocking=True) for each in rows]
        for tensor in there:
            self._is_used(tensor)
        look_ups = [OnDevice(*pair, tensor) for pair, tensor in zip(keys, there, strict=True)]
        return Uploaded(batch, look_ups, self._waiter())

    def _array(self, array: NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
        """Begin to bring an array there; it is converted on the device."""
        tensor = torch.from_numpy(array)
        with self._beside():
            there = (tensor.pin_memory() if self._pins else tensor).to(self._device, non_blocking=True)
            there = there if dtype is None else there.to(dtype)
        self._is_used(there)
        return there

    def _beside(self) -> AbstractContextManager[Any]:
        """Return what copies are begun in: the stream of our own."""
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()

    def _is_used(self, tensor: Tensor) -> None:
        """Have the memory of a tensor kept until what is computed with it is done."""
        if self._stream is not None:
            tensor.record_stream(torch.cuda.current_stream(self._device))

    def _waiter(self) -> Callable[[], None]:
        """Return what has everything computed from then on wait for what was begun so far."""
        if self._stream is None:
            return lambda: None
        event = self._stream.record_event()
        return lambda: torch.cuda.current_stream(self._device).wait_event(event)


def downloaded(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor in host memory: from a GPU, once what was begun there so far is done (`download_waiter`)."""
    tensor = tensor.detach()
    if tensor.device.type != "cuda":
        return tensor.cpu().contiguous().numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True).numpy()


def download_waiter(device: torch.device) -> Callable[[], None]:
    """Return what waits, in any thread, until all that was begun on a device so far is done."""
    if device.type != "cuda":
        return lambda: None
    wait: Callable[[], None] = torch.cuda.current_stream(device).record_event().synchronize
    return wait
