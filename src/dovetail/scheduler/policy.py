"""The one protocol behind which every way to share a cluster sits."""

from __future__ import annotations

from typing import Protocol

from dovetail.scheduler.view import Allocation, ClusterView


class Policy(Protocol):
    """A scheduling rule: what runs and waits now, to what should run next."""

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the type and workers of every job that should run; a job left out waits."""
        ...
