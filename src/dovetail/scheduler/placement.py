"""Which nodes the workers of a job stand on.

Placement is greedy and never moves a running job: what fits one node goes to the fullest node it fits; what does not
takes the emptiest nodes whole, then the fullest that holds the rest. With sites it is the same for sites first, so that
a job stands at one site wherever one has room for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dovetail.scheduler.view import IntArray
from dovetail.spec.workload import Workload

Seats = list[tuple[int, int]]


@dataclass(slots=True)
class TypePlacement:
    """The nodes of one type: how many workers of each are free, which are down, and the number of each one's site."""

    size: IntArray
    free: IntArray
    up: list[bool]
    site: IntArray
    seats: dict[int, Seats] = field(default_factory=dict)

    def fewest_nodes(self, workers: int) -> int:
        """Return how many nodes the tightest placement of `workers` takes, all nodes empty."""
        largest_first = np.sort(self.size)[::-1]
        return int(np.searchsorted(np.cumsum(largest_first), workers)) + 1

    def place(self, row: int, workers: int) -> bool:
        """Seat a job; return whether it stands as tight as can be."""
        seats: Seats = []
        usable = np.where(self.up, self.free, 0)
        for site, here in spread(np.bincount(self.site, weights=usable).astype(np.int64), workers):
            seats += spread(np.where(self.site == site, usable, 0), here)
        for node, taken in seats:
            self.free[node] -= taken
        self.seats[row] = seats
        return len(seats) <= self.fewest_nodes(workers)

    def sites_of(self, row: int) -> list[int]:
        """Return the numbers of the sites that a seated job stands at."""
        return sorted({int(self.site[node]) for node, _ in self.seats[row]})

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


def spread(room: IntArray, workers: int) -> Seats:
    """Return how many workers to put at each place: all where one holds them, else the emptiest filled up first."""
    left, seats = room.copy(), []
    while workers > 0:
        fitting = np.flatnonzero(left >= workers)
        place = int(fitting[np.argmin(left[fitting])]) if len(fitting) else int(np.argmax(left))
        taken = min(workers, int(left[place]))
        left[place] -= taken
        workers -= taken
        seats.append((place, taken))
    return seats


def placements(workload: Workload) -> list[TypePlacement]:
    """Return the empty nodes of each type, in the order of `workload.types`; sites have their numbers there."""
    found = []
    number_of = {site: number for number, site in enumerate(workload.sites)}
    for name in workload.types:
        nodes = [group for group in workload.nodes if group.type == name for _ in range(group.count)]
        sizes = np.array([group.workers for group in nodes], np.int64)
        sites = [0 if group.site is None else number_of[group.site] for group in nodes]
        found.append(
            TypePlacement(size=sizes, free=sizes.copy(), up=[True] * len(nodes), site=np.array(sites, np.int64))
        )
    return found
