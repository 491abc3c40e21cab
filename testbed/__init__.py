"""Unlike hosts on one machine: memory limits, and network namespaces with links of a given speed.

For tests and benchmarks of what happens when machines do not match. It needs Linux and, mostly, root; `available` says
what works here. What was made is removed on the way out, and what a dead process left behind at the next start.
"""

from testbed.available import Available, available
from testbed.hosts import HostError, Hosts, enter, inside
from testbed.memory import MemoryLimit
from testbed.ray_nodes import RayNodes

__all__ = ["Available", "HostError", "Hosts", "MemoryLimit", "RayNodes", "available", "enter", "inside"]
