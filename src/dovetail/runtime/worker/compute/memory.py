"""Memory: what a micro-batch takes, and how many samples fit what is free."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
import torch
from torch import Tensor

FREE_KNOWN_S = 0.4
"""How long what is known of the free memory holds: asking costs a slow worker milliseconds."""
FILLED = 0.8
"""How much of the free memory a task may take: the rest is for what a model needs besides what autograd keeps."""
AT_ONCE = 4
"""Micro-batches in memory at the same time: two fetched ahead, one computed, one sent."""


class MemoryBudget:
    """How many samples fit a worker's memory."""

    def __init__(self, limit_bytes: int | None, micro_batch: int, bytes_per_sample: Callable[[], float]) -> None:
        """Keep the limits; `bytes_per_sample()` is 0 before it is known what a sample takes."""
        self._limit_bytes, self._micro_batch, self._bytes_per_sample = limit_bytes, micro_batch, bytes_per_sample
        self._free_bytes, self._known_s = 0, -math.inf

    def most_samples(self) -> int | None:
        """Return how many samples a task may have; None before it is known what one takes."""
        each, now_s = self._bytes_per_sample(), time.monotonic()
        if not each:
            return None
        if now_s - self._known_s > FREE_KNOWN_S:
            self._free_bytes, self._known_s = free_memory_bytes(self._limit_bytes), now_s
        return max(1, int(self._free_bytes * FILLED / each))

    def most_at_once(self) -> int:
        """Return how many samples a micro-batch may have."""
        most = self.most_samples()
        return self._micro_batch if most is None else max(1, min(self._micro_batch, most // AT_ONCE))


def free_memory_bytes(limit_bytes: int | None) -> int:
    """Return the memory that this process may still take."""
    free = int(psutil.virtual_memory().available)
    if limit_bytes is None:
        return free
    return max(0, min(free, limit_bytes - int(psutil.Process().memory_info().rss)))


@dataclass(slots=True)
class SavedTensors:
    """Bytes of tensors that were kept, each memory once."""

    total: int = 0
    _seen: set[int] = field(default_factory=set)

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor that autograd keeps."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor


@contextmanager
def saved_bytes(parameters: Tensor) -> Iterator[SavedTensors]:
    """Count what autograd keeps inside the block, the memory of `parameters` left out."""
    saved = SavedTensors()
    saved.add(parameters)
    saved.total = 0
    with torch.autograd.graph.saved_tensors_hooks(saved.add, lambda tensor: tensor):
        yield saved
