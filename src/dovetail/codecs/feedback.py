"""What a sender keeps back of what it sends: the residual of a vector, which the next sending brings.

    sent now = coded(gradient + residual),   residual = gradient + residual - sent now

So the sum of what arrived is the sum of all gradients less the last residual. That holds through work that is thrown
away as well: what did not count is taken back.
"""

from __future__ import annotations

import numpy as np

from dovetail.codecs.codec import Floats


class Feedback:
    """The residual of one vector: now, before the sending under way, and before the step under way.

    It takes memory from the first sending on of which something is kept back.
    """

    def __init__(self, size: int) -> None:
        """Start with nothing kept back."""
        self._size = size
        self.now: Floats = np.empty(0, dtype=np.float32)
        self._before_sending = self._before_step = self.now
        self._step = -1

    @property
    def is_any(self) -> bool:
        """Say whether there may be anything that is kept back."""
        return len(self.now) > 0

    def begin(self, step: int) -> None:
        """Say that something is about to be sent for a step."""
        if not self.is_any:
            self.now, self._before_sending, self._before_step = np.zeros((3, self._size), dtype=np.float32)
        if step != self._step:
            self._before_step[:] = self.now
            self._step = step
        self._before_sending[:] = self.now

    def take_back(self, part: slice) -> None:
        """Put back a part of what was sent last: it does not count."""
        self.now[part] = self._before_sending[part]

    def at(self, step: int) -> Floats:
        """Return the residual as it was before anything was sent for a step, or after."""
        return self._before_step if self._step >= step else self.now

    def go_back(self, step: int) -> bool:
        """Forget what was sent for a step and after it: the run does it again; False where there is nothing such."""
        if self._step < step:
            return False
        self.now[:] = self._before_step
        self._step = -1
        return True

    def clear(self) -> Floats:
        """Keep nothing back any more; return what was kept."""
        kept = self.now.copy()
        self.now[:] = 0
        self._step = -1
        return kept
