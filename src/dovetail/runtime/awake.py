"""Time in which this process was awake."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_S = 1.0
"""The most that counts from one look to the next: whoever looks does so several times a second."""


class AwakeClock:
    """Seconds in which this process was not standing still: stopped by Ctrl-Z, or asleep with its machine.

    Whoever measures silence by it does not take others for dead because it was away itself. One thread calls `now`,
    several times a second; the others may read `last_s`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start now."""
        self._clock = clock
        self._looked_s = clock()
        self.last_s = 0.0
        """What `now` returned last."""

    def now(self) -> float:
        """Return the seconds since the start."""
        looked_s = self._clock()
        self.last_s += min(MOST_S, looked_s - self._looked_s)
        self._looked_s = looked_s
        return self.last_s
