"""Which nodes the workers of a job stand on.

Placement is greedy and never moves a running job: what fits one node goes to the fullest node it fits; what does not
takes the emptiest nodes whole, then the fullest that holds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dovetail.scheduler.view import IntArray
from dovetail.spec.workload import Workload

Seats = list[tuple[int, int]]


@dataclass(slots=True)
class TypePlacement:
    """The nodes of one type: how many workers of each are free, and which are down."""

    size: IntArray
    free: IntArray
    up: list[bool]
    seats: dict[int, Seats] = field(default_factory=dict)

    def fewest_nodes(self, workers: int) -> int:
        """Return how many nodes the tightest placement of `workers` takes, all nodes empty."""
        largest_first = np.sort(self.size)[::-1]
        return int(np.searchsorted(np.cumsum(largest_first), workers)) + 1

    def place(self, row: int, workers: int) -> bool:
        """Seat a job; return whether it stands as tight as can be."""
        seats: Seats = []
        rest = workers
        while rest > 0:
            usable = np.where(self.up, self.free, 0)
            fitting = np.flatnonzero(usable >= rest)
            node = int(fitting[np.argmin(usable[fitting])]) if len(fitting) else int(np.argmax(usable))
            taken = min(rest, int(usable[node]))
            self.free[node] -= taken
            seats.append((node, taken))
            rest -= taken
        self.seats[row] = seats
        return len(seats) <= self.fewest_nodes(workers)

    def release(self, row: int) -> None:
        """Free the workers of a job."""
        for node, taken in self.seats.pop(row):
            self.free[node] += taken

    def take_down(self, count: int) -> tuple[list[int], list[int]]:
        """Take the last `count` nodes that are up down; return them and the jobs that stood on them."""
        nodes = [node for node in range(len(self.up)) if self.up[node]][-count:]
        for node in nodes:
            self.up[node] = False
        hit = [row for row, seats in self.seats.items() if any(node in nodes for node, _ in seats)]
        return nodes, sorted(hit)

    def bring_up(self, nodes: list[int]) -> None:
        """Bring nodes up again."""
        for node in nodes:
            self.up[node] = True

    @property
    def workers_up(self) -> int:
        """Workers on the nodes that are up."""
        return int(self.size[np.array(self.up)].sum())


def placements(workload: Workload) -> list[TypePlacement]:
    """Return the empty nodes of each type, in the order of `workload.types`."""
    found = []
    for name in workload.types:
        sizes = [group.workers for group in workload.nodes if group.type == name for _ in range(group.count)]
        found.append(
            TypePlacement(size=np.array(sizes, np.int64), free=np.array(sizes, np.int64), up=[True] * len(sizes))
        )
    return found
