"""How long jobs are, from those that are done: what is expected of one that has run for a while.

Sizes are in seconds on one worker, so that jobs of unlike kinds compare. Of a job that has already done `a` of them,
what is left is expected to be the mean of `size - a` over the finished jobs longer than `a`: for sizes that spread far
it grows with `a`. Where too few were longer, as much again as it has done.
"""

from __future__ import annotations

import numpy as np

FEWEST = 3
FIRST_GUESS_S = 3600.0
"""The size assumed before any job is done."""
ERROR = 1.0
"""The spread of sizes: the standard deviation of their logarithm, as an error bar."""


class SizeHistory:
    """Sizes of finished jobs, by kind and in all."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._all: list[float] = []
        self._by_kind: dict[str, list[float]] = {}

    def add(self, kind: str, size_s: float) -> None:
        """Take in a finished job."""
        self._all.append(size_s)
        self._by_kind.setdefault(kind, []).append(size_s)

    def expected_left_s(self, kind: str, done_s: float) -> float:
        """Return the seconds on one worker that a job is expected to have left after `done_s` of them."""
        for sizes in (self._by_kind.get(kind, ()), self._all):
            longer = [size for size in sizes if size > done_s]
            if len(longer) >= FEWEST:
                return float(np.mean(longer)) - done_s
        guess_s = float(np.mean(self._all)) if self._all else FIRST_GUESS_S
        return max(guess_s - done_s, done_s, 1.0)
