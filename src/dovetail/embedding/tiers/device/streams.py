"""Streams of a device and events on them; on a CPU, where torch works at once, there is nothing to wait for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.errors import TableError

ALIGNED = 512
"""Arrays that are copied together begin at multiples of so many bytes, as those that are allocated do."""


class StreamEvent(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Say whether the work before it is done."""
        ...

    def synchronize(self) -> None:
        """Have this thread wait until it is; others go on."""
        ...


class _Past:
    """A point that lies behind us."""

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""


class Streams:
    """Streams beside the one that computes: `bringing` has keys come, `planning` finds rows, two more move them."""

    def __init__(self, device: torch.device) -> None:
        """Make the streams of a device."""
        self.device, self.is_cuda = device, device.type == "cuda"
        self.bringing, self.planning, self.rising, self.sinking = (self._stream() for _ in range(4))

    def _stream(self) -> torch.cuda.Stream | None:
        """Return a stream whose small kernels go before the large ones that compute."""
        return torch.cuda.Stream(self.device, priority=-1) if self.is_cuda else None  # type: ignore[no-untyped-call]

    def on(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
        """Have what follows run on a stream."""
        return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)

    def event(self) -> StreamEvent:
        """Return the present end of the current stream."""
        if not self.is_cuda:
            return _Past()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait_for(self, event: StreamEvent | None) -> None:
        """Have the current stream, and nobody else, wait."""
        if isinstance(event, torch.cuda.Event):
            torch.cuda.current_stream(self.device).wait_event(event)

    def wait_for_all(self) -> None:
        """Have this thread wait until the device is idle."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def up(self, array: NDArray[np.generic]) -> Tensor:
        """Return a copy of an array on the device, made behind the current stream's work."""
        here = torch.from_numpy(array if array.flags.writeable else array.copy())
        if not self.is_cuda:
            return here.clone()
        if not here.is_pinned():
            pinned = torch.empty(here.shape, dtype=here.dtype, pin_memory=True)
            here = pinned.copy_(here)
        return here.to(self.device, non_blocking=True)

    def up_together(self, arrays: Sequence[NDArray[np.generic]]) -> StagedArrays:
        """Return copies of several arrays on the device, made with one copy."""
        layout, size = [], 0
        for array in arrays:
            layout.append((array.dtype, array.shape, size))
            size += -(-array.nbytes // ALIGNED) * ALIGNED
        here = torch.empty(size, dtype=torch.uint8, pin_memory=self.is_cuda)
        room = here.numpy()
        for array, (dtype, shape, begin) in zip(arrays, layout, strict=True):
            np.copyto(room[begin : begin + array.nbytes].view(dtype).reshape(shape), array)
        there = here.to(self.device, non_blocking=True) if self.is_cuda else here
        return StagedArrays(there, tuple(layout))

    def down(self, tensor: Tensor) -> Tensor:
        """Return a copy in host memory, which is there once the current stream has come so far."""
        if not self.is_cuda:
            return tensor.clone()
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return here.copy_(tensor, non_blocking=True)

    def host_rows(self, num_rows: int, row_width: int) -> Tensor:
        """Return room for rows in host memory from which they go up fast."""
        return torch.empty((num_rows, row_width), dtype=torch.float32, pin_memory=self.is_cuda)


@dataclass(frozen=True, slots=True, eq=False)
class StagedArrays:
    """Arrays that lie on the device one after the other, as they were copied there."""

    numbers: Tensor
    """Their bytes."""
    layout: tuple[tuple[np.dtype[np.generic], tuple[int, ...], int], ...]
    """The type and shape of each, and where it begins: those of one layout can be copied over each other at once."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Return each of them."""
        found = []
        for dtype, shape, begin in self.layout:
            part = self.numbers[begin : begin + dtype.itemsize * math.prod(shape)]
            found.append(part.view(_torch_type(dtype)).view(shape))
        return tuple(found)

    def clone(self) -> StagedArrays:
        """Return a copy of them."""
        return StagedArrays(self.numbers.clone(), self.layout)

    def without_first(self) -> tuple[Tensor, StagedArrays]:
        """Return the first, and the others."""
        (dtype, shape, _), *others = self.layout
        size = dtype.itemsize * math.prod(shape)
        end = others[0][2] if others else len(self.numbers)
        rest = tuple((kind, form, begin - end) for kind, form, begin in others)
        return self.numbers[:size].view(_torch_type(dtype)).view(shape), StagedArrays(self.numbers[end:], rest)


@lru_cache
def _torch_type(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def find_device(name: str) -> torch.device:
    """Return a device that there is."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise TableError(f"there is no device `{name}`", hint="give `cuda`, `cuda:1` or `cpu`") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise TableError(
                f"the device `{name}` is not there: this machine, or this build of PyTorch, has no CUDA",
                hint="leave device_bytes away: rows then lie in host memory and on disk; `dovetail doctor` says more",
            )
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise TableError(
                f"the device `{name}` is not there: this machine has {torch.cuda.device_count()}",
                hint=f"give cuda:0 to cuda:{torch.cuda.device_count() - 1}",
            )
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if device.type != "cpu":
        raise TableError(f"a table's rows cannot lie on `{name}`", hint="give `cuda`, `cuda:1` or `cpu`")
    return device
