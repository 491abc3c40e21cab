"""Parameters in bfloat16 and float16 over masters in float32, and losses scaled so that small gradients survive.

Servers, rings and checkpoints keep masters in float32. A worker computes with copies of them in the parameter's own
type; gradients, which have that type too, are added up in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.worker.rows.batch_rows import Leaf

FIRST_SCALE = 65536.0
"""What the mean over samples is multiplied by at first."""
LEAST_SCALE = 2.0**-24
GROW_AFTER = 2000
"""Micro-batches without an overflow after which the scale is tried at twice its size."""


class LowParameters:
    """Copies of masters in lower precision, and the way of their gradients into the vector of all."""

    def __init__(self) -> None:
        """Start with none."""
        self._copies: list[tuple[nn.Parameter, Tensor]] = []

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, parameter: nn.Parameter, master: Tensor, gradients: Tensor) -> None:
        """Have a parameter follow its master; its gradients go to `gradients`, which has the master's shape."""
        parameter.data = parameter.data.to(master.device)
        parameter.grad = None
        self._copies.append((parameter, master))

        def pass_on(of: Tensor) -> None:
            if of.grad is not None:
                gradients.add_(of.grad)
                of.grad = None

        parameter.register_post_accumulate_grad_hook(pass_on)  # type: ignore[no-untyped-call]

    def refresh(self) -> None:
        """Take the masters' values."""
        for parameter, master in self._copies:
            parameter.data.copy_(master)  # as data: passes under way do not take it for a change of theirs


class LossScale:
    """A power of two that losses are multiplied by before the way back: halved on overflow, doubled after a while.

    Gradients are divided by it before anybody else sees them, so each worker has its own.
    """

    def __init__(self) -> None:
        """Begin with a scale that is most likely too large: that costs a few passes back."""
        self.value = FIRST_SCALE
        self._good = 0

    def backward(self, loss: Tensor, samples: int, gradients: Tensor, leaves: Callable[[], Sequence[Leaf]]) -> None:
        """Add the gradients of a loss to a vector, and to those of looked-up rows; again, smaller, on overflow."""
        before = gradients.clone()
        while True:
            factor = self.value / max(1, samples)
            gradients.zero_()
            (loss * factor).backward(retain_graph=True)  # type: ignore[no-untyped-call]
            rows = [leaf.tensor.grad for leaf in leaves() if leaf.tensor.grad is not None]
            if all(bool(torch.isfinite(each).all()) for each in (gradients, *rows)):
                break
            for leaf in leaves():
                leaf.tensor.grad = None
            self._shrink()
        for each in (gradients, *rows):
            each.div_(factor)
        gradients.add_(before)
        self._good += 1
        if self._good >= GROW_AFTER:
            self.value, self._good = self.value * 2.0, 0

    def _shrink(self) -> None:
        """Try half the scale, unless nothing helps."""
        self.value, self._good = self.value / 2.0, 0
        if self.value < LEAST_SCALE:
            raise TrainingError(
                "gradients in float16 are infinite or no numbers, however small the loss is made",
                hint="take bfloat16, which has the range of float32, or look for broken samples",
            )
