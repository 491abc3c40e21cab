"""Losses that are looked at some steps late, so that nobody waits for a device."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from dovetail.runtime.errors import TrainingError

TOGETHER = 8
"""Steps whose losses are brought from the device with one copy."""


class LateLosses:
    """The losses of steps under way; one that is no number is an error, some steps late."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._there = list(torch.zeros(TOGETHER, device=device).unbind()) if self._is_cuda else []
        self._steps: list[tuple[int, int]] = []
        """Samples and number of each step whose loss is there."""
        self._waiting: deque[tuple[Tensor, Any, list[tuple[int, int]]]] = deque()
        self._free: list[tuple[Tensor, Any]] = []
        """Room for losses here, and events, that nobody waits for."""
        self._known: list[tuple[int, float]] = []

    def take(self) -> list[tuple[int, float]]:
        """Return (samples, summed loss) of the steps whose losses have become known since this was last asked."""
        known, self._known = self._known, []
        return known

    def add(self, loss: Tensor, *, samples: int, step: int) -> None:
        """Take in the summed loss of a step that was begun."""
        if not self._is_cuda:
            self._take(float(loss.detach()), samples, step)
            return
        self._there[len(self._steps)].copy_(loss.detach())
        self._steps.append((samples, step))
        if len(self._steps) == TOGETHER:
            self._send()
            while self._waiting and (len(self._waiting) > 1 or self._waiting[0][1].query()):
                self._look()

    def settle(self) -> None:
        """Look at all of them."""
        if self._steps:
            self._send()
        while self._waiting:
            self._look()

    def _send(self) -> None:
        """Have losses copied to host memory."""
        here, arrived = self._free.pop() if self._free else _room()
        here.copy_(torch.stack(self._there), non_blocking=True)
        arrived.record()
        self._waiting.append((here, arrived, self._steps))
        self._steps = []

    def _look(self) -> None:
        here, arrived, steps = self._waiting.popleft()
        arrived.synchronize()
        totals = here.tolist()
        self._free.append((here, arrived))
        for total, (samples, step) in zip(totals, steps, strict=False):
            self._take(total, samples, step)

    def _take(self, total: float, samples: int, step: int) -> None:
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss is {total} at step {step}",
                hint="lower the learning rate, clip gradients, or look for broken samples",
            )
        self._known.append((samples, total))


def _room() -> tuple[Tensor, Any]:
    """Return room for losses in page-locked memory, and the event of their arrival."""
    return torch.empty(TOGETHER, dtype=torch.float32, pin_memory=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
