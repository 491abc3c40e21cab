"""The doubling heuristic for ring-architecture jobs.

Every job gets its least number of workers, in order of submission; the rest queue. Then again and again the job with
the largest saving a worker,

    (Q / f(w) - Q / f(2 w)) / w,        Q the work left, f(w) the speed on w workers,

is doubled, while workers last and the saving is positive. Adding workers one by one would stall at powers of two, where
8 -> 9 can be slower. The sizes are computed afresh at every decision; what comes out unchanged keeps running.

United States patent 11,693,706 B2 claims this heuristic: it is one policy among several here and never the default.
"""

from __future__ import annotations

from dovetail.scheduler.baselines.growing import grown
from dovetail.scheduler.view import Allocation, ClusterView


class Doubling:
    """Least workers for all, then double where it saves the most a worker."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the sizes that doubling arrives at."""
        return grown(view, doubling=True)
