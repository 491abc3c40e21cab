"""Sharing a cluster between jobs: policies that do not know who drives them.

Every name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.scheduler.policy import Policy
    from dovetail.scheduler.registry import POLICIES, make_policy
    from dovetail.scheduler.view import Allocation, ClusterView

__all__ = ["POLICIES", "Allocation", "ClusterView", "Policy", "make_policy"]

__getattr__, __dir__ = on_demand(__name__)
