"""Models of a user's own that are slow in some steps: they really sleep."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn


class Sleepy(nn.Module):
    """Takes `slow_s` in its first steps, or in some of every round of `every` steps; `quick_s` in others."""

    def __init__(self, num_dense: int, slow_steps: int, every: int | None, slow_s: float, quick_s: float) -> None:
        super().__init__()
        self.line = nn.Linear(num_dense, 1)
        self.slow_steps, self.every, self.slow_s, self.quick_s = slow_steps, every, slow_s, quick_s
        self.steps = 0

    def forward(self, dense: Tensor) -> Tensor:
        at = self.steps if self.every is None else self.steps % self.every
        if self.training and torch.is_grad_enabled():
            self.steps += 1
        time.sleep(self.slow_s if at < self.slow_steps else self.quick_s)
        scores: Tensor = self.line(dense)
        return scores.squeeze(1)


def sleepy(
    schema: Any, slow_steps: int = 20, every: int | None = None, slow_s: float = 0.1, quick_s: float = 0.01
) -> nn.Module:
    return Sleepy(schema.num_dense, slow_steps, every, slow_s, quick_s)
