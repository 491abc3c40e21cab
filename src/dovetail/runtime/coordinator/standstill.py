"""A run in which nothing moves though nobody hangs: a message was lost, and everyone waits for everyone."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.runtime.coordinator.members import Worker

LEAST_S = 60.0
"""How long nothing must have moved at the least: longer than the first step waits for workers."""
PATIENCES = 6.0
"""How many times the run's patience that is."""
BUSY_S = 1.0
"""A worker that has been at the same thing for longer computes; it is no standstill."""


class Standstill:
    """Tells a standstill by its length, which doubles each time: a run that is only slow must come to its end."""

    def __init__(self, patience_s: float) -> None:
        """Start moving."""
        self._first_s = max(LEAST_S, PATIENCES * patience_s)
        self._limit_s = self._first_s
        self._moved_s = 0.0

    def moved(self, now_s: float) -> None:
        """Note that something came of the work."""
        self._moved_s = now_s
        self._limit_s = self._first_s

    def is_one(self, workers: Iterable[Worker], now_s: float) -> bool:
        """Say whether nothing has moved for too long; where it has not, the next may take twice as long."""
        if now_s - self._moved_s <= self._limit_s or any(worker.stuck_s > BUSY_S for worker in workers):
            return False
        self._limit_s *= 2
        self._moved_s = now_s
        return True
