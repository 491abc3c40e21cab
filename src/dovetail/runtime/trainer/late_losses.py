"""Losses that are looked at a few steps late, so that nobody waits for a device."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from dovetail.runtime.errors import TrainingError

MOST_LATE = 4
"""Steps that may be under way while no loss of theirs is known."""


class LateLosses:
    """The losses of steps under way; one that is no number is an error, a few steps late."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._waiting: deque[tuple[Tensor, Any, int, int]] = deque()
        self._known: list[tuple[int, float]] = []
        self._free: list[tuple[Tensor, Any]] = []
        """Room for losses, and events, that nobody waits for."""

    def take(self) -> list[tuple[int, float]]:
        """Return (samples, summed loss) of the steps whose losses have become known since this was last asked."""
        known, self._known = self._known, []
        return known

    def add(self, loss: Tensor, *, samples: int, step: int) -> None:
        """Take in the summed loss of a step that was begun."""
        if not self._is_cuda:
            self._take(float(loss.detach()), samples, step)
            return
        here, arrived = self._free.pop() if self._free else _room()
        here.copy_(loss.detach(), non_blocking=True)
        arrived.record()
        self._waiting.append((here, arrived, samples, step))
        while self._waiting and (len(self._waiting) > MOST_LATE or self._waiting[0][1].query()):
            self._look()

    def settle(self) -> None:
        """Look at all of them."""
        while self._waiting:
            self._look()

    def _look(self) -> None:
        here, arrived, samples, step = self._waiting.popleft()
        arrived.synchronize()
        self._free.append((here, arrived))
        self._take(float(here), samples, step)

    def _take(self, total: float, samples: int, step: int) -> None:
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss is {total} at step {step}",
                hint="lower the learning rate, clip gradients, or look for broken samples",
            )
        self._known.append((samples, total))


def _room() -> tuple[Tensor, Any]:
    """Return room for a loss in page-locked memory, and the event of its arrival."""
    return torch.empty((), dtype=torch.float32, pin_memory=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
