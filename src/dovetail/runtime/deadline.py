"""How long to wait for something that has come many times before."""

from __future__ import annotations

from collections import deque
from statistics import median

MOST_KNOWN = 64
"""How many durations are kept: enough for a steady median, few enough to follow a run that changes."""
FEWEST_KNOWN = 4
"""How many durations make a median."""


class Deadline:
    """A limit on a wait, learnt from how long the last waits took.

        limit = max(floor, median + k MAD)

    MAD is the median distance from the median, so that a few waits that took very long do not raise the limit. While
    fewer than four waits are known, the limit is `first_s`.
    """

    def __init__(self, *, k: float = 8.0, floor_s: float = 2.0, first_s: float = 60.0) -> None:
        """Start with nothing known."""
        self._k = k
        self._floor_s = floor_s
        self._first_s = first_s
        self._durations_s: deque[float] = deque(maxlen=MOST_KNOWN)

    def add(self, duration_s: float) -> None:
        """Note how long a wait took that ended well."""
        self._durations_s.append(duration_s)

    @property
    def limit_s(self) -> float:
        """Return how long the next wait may take."""
        if len(self._durations_s) < FEWEST_KNOWN:
            return self._first_s
        middle_s = median(self._durations_s)
        spread_s = median(abs(duration_s - middle_s) for duration_s in self._durations_s)
        return max(self._floor_s, middle_s + self._k * spread_s)
