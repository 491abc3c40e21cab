"""How fast each layer is on the machine at hand, what it moves, and what it holds.

Every name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.profiler.layers import LayerSeconds, measure_layers
    from dovetail.profiler.links import LinkSpeed, measure_device_copies, measure_loopback
    from dovetail.profiler.profile import Profile
    from dovetail.profiler.request import ProfileRequest

__all__ = [
    "LayerSeconds",
    "LinkSpeed",
    "Profile",
    "ProfileRequest",
    "measure_device_copies",
    "measure_layers",
    "measure_loopback",
]

__getattr__, __dir__ = on_demand(__name__)
