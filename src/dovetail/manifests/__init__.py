"""A plan as other systems start it: manifests for KubeRay and SkyPilot, a Slurm script, a compose file.

Every name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.manifests.nodes import PlannedNodes, planned_nodes
    from dovetail.manifests.target import Target, target_of

__all__ = ["PlannedNodes", "Target", "planned_nodes", "target_of"]

__getattr__, __dir__ = on_demand(__name__)
