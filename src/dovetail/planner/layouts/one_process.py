"""One process on one type, and layouts that were measured as a whole: short lists, asked like the search over servers.

One process on k threads, or on one accelerator, with r cores that read, takes max(t(k), read / r) for a batch. Below
a given time both k and r are the least that do, so the hourly price at a throughput is a formula.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from dovetail.cost.memory import stage_memory
from dovetail.cost.row_budget import with_budget
from dovetail.planner.arrays import as_arrays
from dovetail.planner.cheapest_route import Route
from dovetail.planner.hourly import HourlyCost
from dovetail.planner.layouts.room import Room, largest_machine_bytes, largest_machine_cores
from dovetail.planner.row_budgets.fill import filled, least_of, room_for_rows
from dovetail.planner.row_budgets.search import hull
from dovetail.planner.stage_kernel import SLACK, real_units, seconds_on, stage_parts, whole_units
from dovetail.spec import Problem, Stage, Whole


def whole_count(work_s: float, target_s: float) -> int:
    """Return the least cores that do so many core-seconds within a time; none where there is no work."""
    return max(1, math.ceil(work_s / target_s * (1 - SLACK))) if work_s > 0 else 0


class OneProcess:
    """All layers in one process on one type."""

    def __init__(self, problem: Problem, room: Room, t: int) -> None:
        """Set up for the type at position `t`, on which every layer can run."""
        beside, resource = problem.beside, problem.resources[t]
        if beside is None:
            raise AssertionError("nothing runs beside the layers")
        self._room, self.t, self._name = room, t, resource.name
        self._is_cpu = resource.name in problem.cpu_types
        self._batch, self._read_s = problem.training.batch, beside.read_core_s
        self._last = len(problem.layers) - 1
        self._most_cores = largest_machine_cores(problem, resource.name)
        self._measured = {
            each.units for each in beside.wholes if each.place == "local" and each.resource == resource.name
        }
        self.proven = True
        """Whether no other budgets of rows would be better."""
        self._least = 1
        settled, self.budgets = (problem, None) if self._is_cpu else self._with_rows(problem)
        self._parts = None if settled is None else _parts(settled, t)
        self._least_parts = self._parts
        if self._is_cpu:
            self._least = self._least_threads(problem)
        elif self.budgets:
            self._least_parts = self._bound_parts(problem)

    def at(self, samples_per_s: float) -> HourlyCost:
        """Return the cheapest such process at a throughput."""
        nothing = HourlyCost(lower_bound=math.inf, route=None, exact=True)
        if self._parts is None or self._least_parts is None:
            return nothing
        target_s = self._batch / samples_per_s if samples_per_s > 0 else math.inf
        readers = whole_count(self._read_s, target_s)
        needed = whole_units(self._parts, target_s)
        if not self.proven and needed > 1 >= whole_units(self._least_parts, target_s):
            return HourlyCost(lower_bound=self._price(1, readers), route=None, exact=False)
        if math.isinf(needed):
            return nothing
        units = max(int(needed), self._least)
        while units in self._measured:
            units += 1
        cores = readers + (units if self._is_cpu else int(self._room.hosts[self.t]))
        if (units > 1 and not self._is_cpu) or cores > self._most_cores:
            return nothing
        if units > self._room.limit[self.t] or not self._room.holds(self.t, units, readers):
            return nothing
        return HourlyCost(lower_bound=self._price(units, readers), route=self._route(units, readers), exact=True)

    def bound_between(self, low: float, high: float) -> float:
        """Return a bound on USD per hour over samples/s of such processes that run at `low` up to `high`."""
        if self._least_parts is None:
            return math.inf
        share, target_s = (low / high if math.isfinite(high) else 0.0), self._batch / low
        whole, real = whole_units(self._least_parts, target_s), real_units(self._least_parts, target_s)
        if whole > self._room.limit[self.t] or (whole > 1 and not self._is_cpu):
            return math.inf
        units = max(share * whole, real)
        readers = max(share * whole_count(self._read_s, target_s), self._read_s / target_s)
        return float(self._price(units, readers) / low)

    def batch_seconds(self, route: Route) -> float:
        """Return what a batch takes."""
        read_s = self._read_s / route.readers if route.readers else 0.0
        return float(max(seconds_on(self._parts, int(route.units[0])), read_s))

    def slowest_batch_seconds(self) -> float:
        """Return seconds that a batch takes at most, on one unit with one reader."""
        return 0.0 if self._parts is None else float(seconds_on(self._parts, 1) + self._read_s)

    def _price(self, units: float, readers: float) -> float:
        return float(self._room.price_per_hour[self.t] * units + self._room.core_price * readers)

    def _route(self, units: int, readers: int) -> Route:
        return Route(
            types=np.array([self.t]),
            lasts=np.array([self._last]),
            units=np.array([units]),
            place="local",
            readers=readers,
            row_budgets=self.budgets,
        )

    def _least_threads(self, problem: Problem) -> int:
        """Return the threads with which one process has enough memory: its machine's, or that of its units."""
        held = stage_memory(problem.layers, units=1, resource=self._name).total_bytes
        unit_bytes = problem.resources[self.t].memory_bytes
        room = largest_machine_bytes(problem, self._name)
        if math.isfinite(room):
            if held > room * (1 + SLACK):
                self._parts = self._least_parts = None
            return 1
        return 1 if unit_bytes is None else max(1, math.ceil(held / unit_bytes * (1 - SLACK)))

    def _with_rows(self, problem: Problem) -> tuple[Problem | None, dict[str, float] | None]:
        """Return the problem with the rows that fit into an accelerator, and their bytes where not all do.

        The problem is None where what it must hold does not fit.
        """
        name, room_bytes = self._name, problem.resource(self._name).memory_bytes
        held = stage_memory(problem.layers, units=1, resource=name).total_bytes
        caches = [layer for layer in problem.layers if layer.on[name].cache is not None]
        if room_bytes is None or held <= room_bytes * (1 + SLACK):
            return problem, None
        stage = Stage(resource=name, first_layer=0, last_layer=self._last, units=1)
        least = {layer.name: least_of(cache) for layer in caches if (cache := layer.on[name].cache) is not None}
        room = room_for_rows(problem, stage, list(least))
        if not least or room < sum(least.values()):
            return None, None
        budgets = dict(filled(problem, stage, least, room))
        outside = sum(
            max(0.0, layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes - budgets[layer.name])
            for layer in caches
        )
        if outside > largest_machine_bytes(problem, name):
            return None, None
        return _settled(problem, name, budgets), budgets

    def _bound_parts(self, problem: Problem) -> tuple[float, float, float, float, float] | None:
        """Return parts that no budgets beat: those of ours, where nothing is lost by giving bytes where one saves most.

        Otherwise along the least curves above those of the embeddings, which never get steeper.
        """
        if self._parts is None or self.budgets is None:
            return None
        caches = {layer.name: layer.on[self._name].cache for layer in problem.layers if layer.name in self.budgets}
        if len(caches) == 1:
            return self._parts
        left = sum(self.budgets.values())
        missed_s = now_s = 0.0
        lines: list[tuple[float, float]] = []
        for name, cache in caches.items():
            if cache is None:
                continue
            left -= least_of(cache)
            missed_s += cache.miss_s * (1 - cache.hit_ratio(least_of(cache)))
            now_s += cache.miss_s * (1 - cache.hit_ratio(self.budgets[name]))
            lines += [(worth, held) for held, worth in hull(cache)]
        for worth, held in sorted(lines, reverse=True):
            missed_s -= worth * min(held, left)
            left -= min(held, left)
        gain_s = now_s - missed_s
        self.proven = gain_s <= SLACK * now_s
        compute_serial, compute_shared, comm_serial, comm_shared, least = self._parts
        return compute_serial, compute_shared, comm_serial, max(0.0, comm_shared - max(0.0, gain_s)), least


def _settled(problem: Problem, name: str, budgets: dict[str, float]) -> Problem:
    """Return the problem with embeddings that keep so much on a type."""
    layers = list(problem.layers)
    for position, layer in enumerate(layers):
        if layer.name in budgets:
            layers[position] = with_budget(layer, name, budgets[layer.name])
    return msgspec.structs.replace(problem, layers=tuple(layers))


def _parts(problem: Problem, t: int) -> tuple[float, float, float, float, float]:
    """Return what decides the time of all layers on one type; memory is looked at elsewhere."""
    parts = stage_parts(as_arrays(problem), t, 0, len(problem.layers) - 1, 0, 0)
    return (*parts[:4], 1.0)


class MeasuredWhole:
    """A layout that was measured as a whole."""

    def __init__(self, problem: Problem, room: Room, whole: Whole, t: int) -> None:
        """Set up; `t` is the position of its type."""
        is_cpu = whole.resource in problem.cpu_types
        extra = whole.cores - (whole.units if is_cpu else 0)
        self._seconds = whole.seconds_per_batch
        self._pace = problem.training.batch / whole.seconds_per_batch
        self._price = float(problem.resources[t].price_per_hour * whole.units + room.core_price * extra)
        # What feeds its units is in its own count of cores, not in ours.
        weights = room.weights[:, t] - np.where(room.beside > 0, room.hosts[t], 0)
        used = weights * whole.units + room.beside * extra
        one_machine = largest_machine_cores(problem, whole.resource) if whole.place == "local" else math.inf
        self._fits = bool((used <= room.caps).all()) and whole.units <= room.limit[t] and whole.cores <= one_machine
        self._route = Route(
            types=np.array([t]),
            lasts=np.array([len(problem.layers) - 1]),
            units=np.array([whole.units]),
            place=whole.place,
            servers=whole.servers,
        )

    def at(self, samples_per_s: float) -> HourlyCost:
        """Return it where it is fast enough."""
        if not self._fits or self._pace < samples_per_s * (1 - SLACK):
            return HourlyCost(lower_bound=math.inf, route=None, exact=True)
        return HourlyCost(lower_bound=self._price, route=self._route, exact=True)

    def bound_between(self, low: float, high: float) -> float:
        """Return its USD per hour over samples/s, where it runs at `low` or above."""
        return self._price / self._pace if self._fits and self._pace >= low * (1 - SLACK) else math.inf

    def batch_seconds(self, route: Route) -> float:
        """Return what a batch takes."""
        return self._seconds

    def slowest_batch_seconds(self) -> float:
        """Return what a batch takes."""
        return self._seconds

    def is_it(self, route: Route) -> bool:
        """Say whether a route is this layout."""
        mine = self._route
        return len(route.types) == 1 and (route.place, route.servers, route.types[0], route.units[0]) == (
            mine.place,
            mine.servers,
            mine.types[0],
            mine.units[0],
        )

    def price(self) -> float:
        """Return USD an hour."""
        return self._price
