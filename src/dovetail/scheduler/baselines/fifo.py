"""First in, first out: jobs start in order of submission, run to their end, and nobody overtakes.

A job takes the workers with which it is fastest, on the type that is fastest for it of those that have room for that
many now; where no type has, it and all behind it wait. Nothing that runs is ever touched.
"""

from __future__ import annotations

from dovetail.scheduler.baselines.fixed import Fixed


class Fifo(Fixed):
    """Jobs in order of submission, each on as many workers as pay."""

    def __init__(self) -> None:
        """Let every job take the workers with which it is fastest."""
        super().__init__(size=0)
