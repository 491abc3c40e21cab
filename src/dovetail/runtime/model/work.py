"""How much a model computes, counted while it runs: by this a run decides how many threads are worth their meeting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_ATEN = torch.ops.aten
LOOK_UPS = (_ATEN.embedding, _ATEN._embedding_bag, _ATEN._embedding_bag_forward_only, _ATEN.embedding_renorm_)
"""Read tables, and compute next to nothing, as operations do that go number by number."""


class OperationCounter(TorchDispatchMode):
    """Counts the floating-point operations of matrix products and convolutions while it is entered.

    Nothing is known where an operation takes a parameter and has no formula, such as a whole LSTM.
    """

    def __init__(self, model: nn.Module) -> None:
        """Count none yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = set(_memory([each for each in model.parameters() if each.dim() > 1]))
        self._flops: float | None = 0.0

    def of_each(self, num_samples: int) -> float | None:
        """Return how many there were a sample; None where nobody knows."""
        return None if self._flops is None else self._flops / max(1, num_samples)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count it."""
        out = func(*args, **(kwargs or {}))
        if self._flops is not None:
            try:
                self._flops = self._with(func, args, kwargs or {}, out)
            except (RuntimeError, NotImplementedError, AttributeError):  # tensors without memory, such as sparse ones
                self._flops = None
        return out

    def _with(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> float | None:
        """Return how many there are with those of an operation."""
        packet = func._overloadpacket
        if packet in LOOK_UPS or torch.Tag.pointwise in func.tags:
            return self._flops
        formula = flop_registry.get(packet)
        if formula is not None and self._flops is not None:
            return self._flops + float(formula(*args, **kwargs, out_val=out))
        taken, made = set(_memory((args, kwargs))), set(_memory(out))
        return None if taken & self._weights and not made <= taken else self._flops  # a view computes nothing


def _memory(things: Any) -> list[int]:
    """Return where the tensors among some things lie."""
    tensors = [each for each in tree_leaves(things) if isinstance(each, Tensor) and not each.is_meta]
    return [each.untyped_storage().data_ptr() for each in tensors]
