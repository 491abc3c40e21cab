"""What workers kept back of dense gradients, and servers have: of those who left, and of a checkpoint that was loaded.

It is added to the gradient of the next step. Of workers that go on, copies are kept for the checkpoint that is about to
be written: loaded, they are what those workers had kept back, who then begin with nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Returned:
    """Vectors as long as this server's part of the dense parameters."""

    def __init__(self, size: int, waiting: Floats | None = None) -> None:
        """Begin with what a checkpoint has."""
        self.waiting: Floats = np.zeros(size, dtype=np.float32) if waiting is None else waiting.copy()
        self.is_any = bool(self.waiting.any())
        self._number = -1
        self._copies: dict[str, Floats] = {}
        """For the checkpoint of that number, by worker: one may tell twice."""

    def add(self, kept: Floats, *, worker: str, checkpoint: int) -> None:
        """Take in what a worker keeps back: a copy for the checkpoint of a number; with -1, for good."""
        if checkpoint < 0:
            self.waiting += kept
            self.is_any = True
            return
        if self._number != checkpoint:
            self._number, self._copies = checkpoint, {}
        self._copies[worker] = kept.copy()

    def with_gradient(self, gradient: Floats) -> Floats:
        """Return a gradient with what waits."""
        return gradient + self.waiting if self.is_any else gradient

    def put_into(self, gradient: Floats) -> None:
        """Add what waits to the gradient of a step that counts, which it is in then."""
        if self.is_any:
            gradient += self.waiting
            self.waiting = np.zeros_like(self.waiting)
            self.is_any = False

    def at_checkpoint(self, number: int) -> Floats:
        """Return what a checkpoint of a number holds."""
        total = self.waiting.copy()
        if self._number == number:
            for kept in self._copies.values():
                total += kept
        return total
