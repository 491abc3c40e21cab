"""Unlike hosts on one machine: CPU quotas, memory limits, and network namespaces with links of a given speed.

For tests and benchmarks of what happens when machines do not match. It needs Linux and, mostly, root; `available` says
what works here. What was made is removed on the way out, and what a dead process left behind at the next start.
"""

from dovetail.cgroups import CpuQuota, HostError
from dovetail.testbed.available import Available, available
from dovetail.testbed.hosts import Hosts
from dovetail.testbed.memory import MemoryLimit
from dovetail.testbed.namespaces import enter, inside
from dovetail.testbed.ray_nodes import RayNodes

__all__ = ["Available", "CpuQuota", "HostError", "Hosts", "MemoryLimit", "RayNodes", "available", "enter", "inside"]
