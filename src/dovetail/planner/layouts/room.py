"""What layouts may take of units and cores: limits of types, and machines that everybody on them shares."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dovetail.planner.arrays import Floats, Ints
from dovetail.spec import Problem, ResourceType, SharedMachine
from dovetail.spec.resource import UNITS_WITHOUT_LIMIT


class Room(NamedTuple):
    """Each row c is a bound: sum over types of weights[c, t] * units of t + beside[c] * servers and readers <= caps[c].

    `limit` are the most units of each type by any of them.
    """

    weights: Ints  # [C, T]
    beside: Ints  # [C] 1 where servers and readers count
    caps: Ints  # [C]
    limit: Ints  # [T]
    hosts: Ints  # [T] cores that feed one unit
    core_price: float  # of a core that is no unit of a stage
    price_per_hour: Floats  # [T] of a unit with the cores that feed it

    def holds(self, t: int, units: int, beside: int) -> bool:
        """Say whether there is room for units of one type with so many cores beside them."""
        return bool((self.weights[:, t] * units + self.beside * beside <= self.caps).all())

    def most_units(self, t: int, beside: int) -> int:
        """Return how many units of a type there is room for, with so many cores beside them; below 1 for none."""
        left = self.caps - self.beside * beside
        if (left < 0).any():
            return 0
        counted = self.weights[:, t] > 0
        rows: list[int] = (left[counted] // self.weights[counted, t]).tolist()
        return min([int(self.limit[t]), *rows])

    def most_beside(self) -> int:
        """Return how many cores beside all units there is room for."""
        rows: list[int] = self.caps[self.beside > 0].tolist()
        return min([UNITS_WITHOUT_LIMIT, *rows])


def room_of(problem: Problem, *, fed: bool) -> Room:
    """Return what a problem has room for; with `fed`, accelerators take the cores that feed them."""
    names, cpu_types = [resource.name for resource in problem.resources], problem.cpu_types
    hosts = np.array([_hosts(problem, name) if fed else 0 for name in names], dtype=np.int64)
    limit = np.array(
        [_limit(problem, resource, int(host)) for resource, host in zip(problem.resources, hosts, strict=True)],
        dtype=np.int64,
    )
    core = _core_type(problem) if fed else None
    rows: list[tuple[list[int], int, int]] = []
    for t, name in enumerate(names):
        weights = [int(u == t) for u in range(len(names))]
        if name == core:
            rows.append(([one + int(host) for one, host in zip(weights, hosts, strict=True)], 1, int(limit[t])))
        else:
            rows.append((weights, 0, int(limit[t])))
    if problem.machines:
        weights = [1 if name in cpu_types else int(host) for name, host in zip(names, hosts, strict=True)]
        rows.append((weights, 1, sum(machine.cores * machine.count for machine in problem.machines)))
    core_price = 0.0 if core is None else problem.resource(core).price_per_hour
    prices = np.array([resource.price_per_hour for resource in problem.resources])
    return Room(
        weights=np.array([row[0] for row in rows], dtype=np.int64),
        beside=np.array([row[1] for row in rows], dtype=np.int64),
        caps=np.array([row[2] for row in rows], dtype=np.int64),
        limit=limit,
        hosts=hosts,
        core_price=core_price,
        price_per_hour=prices + core_price * hosts,
    )


def largest_machine_cores(problem: Problem, resource: str) -> float:
    """Return the cores of the largest machine on which one process may be on a type; infinity without machines."""
    if not problem.machines:
        return math.inf
    known = any(resource in machine.units for machine in problem.machines)
    there = [each for each in problem.machines if not known or each.units.get(resource, 0) > 0]
    return max((machine.cores for machine in there), default=0)


def largest_machine_bytes(problem: Problem, resource: str) -> float:
    """Return the most memory of a machine that one process on a type can be on; infinity where that is not said."""
    is_cpu = resource in problem.cpu_types
    there = [each for each in problem.machines if is_cpu or each.units.get(resource, 0) > 0]
    return max((each.memory_bytes or math.inf for each in there), default=math.inf)


def all_machines_bytes(problem: Problem) -> float:
    """Return the memory of all machines together; infinity where it is not said of all of them."""
    total = sum((machine.memory_bytes or math.inf) * machine.count for machine in problem.machines)
    return total if problem.machines else math.inf


def _hosts(problem: Problem, name: str) -> int:
    """Return the cores that feed a unit of a type, which stands on our machines or where nothing is said of any."""
    is_here = not problem.machines or any(name in machine.units for machine in problem.machines)
    return problem.beside.host_cores.get(name, 0) if problem.beside is not None and is_here else 0


def _limit(problem: Problem, resource: ResourceType, host: int) -> int:
    """Return the units of a type that there are, on machines that can feed them."""
    if not any(resource.name in machine.units for machine in problem.machines):
        return resource.units_to_be_had
    there = sum(_fed_units(machine, resource.name, host) * machine.count for machine in problem.machines)
    return min(resource.units_to_be_had, there)


def _fed_units(machine: SharedMachine, name: str, host: int) -> int:
    units = machine.units.get(name, 0)
    return min(units, machine.cores // host) if host else units


def _core_type(problem: Problem) -> str | None:
    """Return the type whose units cores beside stages are: the cheapest of kind cpu."""
    cpu_types = problem.cpu_types
    cores = [resource for resource in problem.resources if resource.name in cpu_types]
    return min(cores, key=lambda resource: resource.price_per_hour).name if cores else None
