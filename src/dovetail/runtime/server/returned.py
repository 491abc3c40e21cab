"""What workers kept back of dense gradients, and servers have: of those who left, and of a checkpoint that was loaded.

It is added to the gradient of the next step. Of workers that go on, copies are kept for the checkpoint that is about to
be written: loaded, they are what those workers had kept back, who then begin with nothing. A server that comes back by
its redo log alone does not load them, for those workers go on; what it was given for good is in the log's sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Returned:
    """Vectors as long as this server's part of the dense parameters."""

    def __init__(self, size: int, waiting: Floats | None = None) -> None:
        """Begin with what a checkpoint has."""
        self._waiting: Floats = np.zeros(size, dtype=np.float32) if waiting is None else waiting.copy()
        self.is_any = bool(self._waiting.any())
        self._in_step: Floats | None = None
        self._number = -1
        self._copies: dict[str, Floats] = {}
        """For the checkpoint of that number, by worker: one may tell twice."""

    def add(self, kept: Floats, *, worker: str, checkpoint: int) -> None:
        """Take in what a worker keeps back: a copy for the checkpoint of a number; with -1, for good."""
        if checkpoint < 0:
            self._waiting += kept
            self.is_any = True
            return
        if self._number != checkpoint:
            self._number, self._copies = checkpoint, {}
        self._copies[worker] = kept.copy()

    def forget(self) -> None:
        """Take in that the run did not go back to the checkpoint: those who told of it keep back what they did."""
        self._waiting[:] = 0
        self.is_any = False

    def put_into(self, gradient: Floats) -> None:
        """Add what waits to the gradient of the step under way, once."""
        if self.is_any:
            gradient += self._waiting
            self._in_step, self._waiting = self._waiting, np.zeros_like(self._waiting)
            self.is_any = False

    def added_to(self, gradient: Floats) -> Floats:
        """Return the gradient of a message, which is not ours to change, with what waits."""
        if self.is_any:
            gradient = gradient.copy()
            self.put_into(gradient)
        return gradient

    def applied(self) -> None:
        """Take in that the step counts."""
        self._in_step = None

    def undone(self) -> None:
        """Take in that the step is done again."""
        if self._in_step is not None:
            self._waiting += self._in_step
            self._in_step, self.is_any = None, True

    def at_checkpoint(self, number: int) -> Floats:
        """Return what a checkpoint of a number holds."""
        total = self._waiting.copy()
        if self._in_step is not None:
            total += self._in_step
        if self._number == number:
            for kept in self._copies.values():
                total += kept
        return total
