"""How long jobs are, from those that are done: what to reckon with for one that has run for a while.

Sizes are in seconds on one worker, so that jobs of unlike kinds compare. Of a job that has already done `a` of them,
with y the sizes of the finished jobs that were longer, less a, what is left counts as (Gittins)

    min over d of  E[min(y, d)] / P(y <= d),

the work that goes into jobs like it for each one that is done, if each is given up after d at the best moment. For one
size it is what is left. Where sizes spread far it is small for a young job, which may well be a short one, and grows
with `a`; the mean would count every young job as long. The least d takes in the root of the number of sizes, so that
no single one decides. Where too few were longer, as much again as the job has done.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.view import FloatArray

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
        """Return the seconds on one worker to reckon with for a job that has done `done_s` of them."""
        for sizes in (self._by_kind.get(kind, ()), self._all):
            longer = [size - done_s for size in sizes if size > done_s]
            if len(longer) >= FEWEST:
                return _work_for_each_done(np.sort(longer))
        guess_s = _work_for_each_done(np.sort(self._all)) if self._all else FIRST_GUESS_S
        return max(guess_s - done_s, done_s, 1.0)


def _work_for_each_done(sizes: FloatArray) -> float:
    """Return the least ratio of work to jobs done over all moments to give up; `sizes` rise."""
    count = len(sizes)
    done = np.arange(1, count + 1)
    ratios = (np.cumsum(sizes) + (count - done) * sizes) / done
    return float(ratios[int(np.sqrt(count)) - 1 :].min())
