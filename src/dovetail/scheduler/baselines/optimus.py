"""Optimus' rule: one worker for everybody, then one more where it saves the most time.

Every job gets its least number of workers in order of submission. Then a single worker is added, again and again, to
the job whose remaining time Q / f(w) falls most, while workers last and the saving is positive.
"""

from __future__ import annotations

from dovetail.scheduler.baselines.growing import grown
from dovetail.scheduler.view import Allocation, ClusterView


class Optimus:
    """Least workers for all, then one more where it saves the most."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the sizes that adding one at a time arrives at."""
        return grown(view, doubling=False)
