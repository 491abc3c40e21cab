"""Time as a run measures it: seconds in which a process was awake, and deadlines learnt from earlier waits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

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


STUCK = 20.0
"""How many times the longest pause that a worker ever made is no pause any more, it hangs."""
UNKNOWN = 6.0
"""How many times the patience a worker may stand still before anything is known of its pauses: it may compile."""


def is_stuck(stuck_s: float, longest_s: float, patience_s: float) -> bool:
    """Say whether a thread hangs that has been at the same thing for so long, by the longest that it ever was."""
    limit_s = STUCK * longest_s if longest_s else UNKNOWN * patience_s
    return stuck_s > max(patience_s, limit_s)
