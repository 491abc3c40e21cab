"""What a micro-batch takes: the bytes that a forward pass keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Saved:
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
def saved_bytes(parameters: Tensor) -> Iterator[Saved]:
    """Count what autograd keeps inside the block, the memory of `parameters` left out."""
    saved = Saved()
    saved.add(parameters)
    saved.total = 0
    with torch.autograd.graph.saved_tensors_hooks(saved.add, lambda tensor: tensor):
        yield saved
