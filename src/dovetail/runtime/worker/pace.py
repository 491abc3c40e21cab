"""How fast a worker is by its own count: what it tells the coordinator when it asks for more work."""

from __future__ import annotations

FOLLOWED = 0.3
"""How much of the way to what was last seen the estimates go."""


class Pace:
    """Seconds a sample takes to compute, and a micro-batch to fetch."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._sample_s = 0.0
        self.fetch_s = 0.0

    def add(self, *, samples: int, compute_s: float, fetch_s: float) -> None:
        """Note a micro-batch."""
        if samples:
            self._sample_s = _followed(self._sample_s, compute_s / samples)
        self.fetch_s = _followed(self.fetch_s, fetch_s)

    def busy_s(self, samples: int) -> float:
        """Return how long so many samples will take."""
        return samples * self._sample_s


def _followed(value: float, seen: float) -> float:
    """Return an estimate that goes part of the way to what was seen."""
    return seen if not value else value + FOLLOWED * (seen - value)
