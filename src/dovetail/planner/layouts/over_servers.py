"""Stages over servers, and stages on machines that share cores: the cheapest hourly price at a given throughput.

At x samples/s a step takes B / x. What is fixed of it is taken off, readers are as many as that time needs, and labels
find the cheapest stages and servers for what is left (`step_labels`). Bounds are those of the plain dynamic programme,
in which every stage has all of that time: a step takes no less than its slowest stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dovetail.planner.arrays import Floats, Ints, ProblemArrays
from dovetail.planner.cheapest_route import Route, cheapest, follow, workspace
from dovetail.planner.hourly import HourlyCost
from dovetail.planner.layouts.one_process import whole_count
from dovetail.planner.layouts.room import Room
from dovetail.planner.layouts.scarce import CappedQuestion, Scarce
from dovetail.planner.layouts.step_labels import (
    Bounds,
    Rests,
    Search,
    StepCosts,
    StepLabels,
    pieces_of,
    room_for_step_labels,
    step_label_search,
    step_seconds,
)
from dovetail.planner.provision import egress_rate
from dovetail.planner.stage_kernel import SLACK
from dovetail.spec import Place, Problem
from dovetail.spec.resource import UNITS_WITHOUT_LIMIT

EFFORT, LEAST_EFFORT = 200_000_000, 1_000_000
"""Of one search by labels; less where searches before did not get to an end."""
SHARES = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Parts of a step's time that stages are bounded with, and that a first legal plan is sought with."""
MOST_ROWS = 1000
"""First stages of more units count as those of so many, as far as bounds on filling go."""


class OverServers:
    """Stages with servers beside them, or with nothing beside them on machines that they share."""

    def __init__(self, problem: Problem, arrays: ProblemArrays, room: Room, *, max_stages: int | None) -> None:
        """Set up; `problem` has its rows on servers already, where it has some."""
        beside = problem.beside
        self.place: Place | None = None if beside is None else "servers"
        limit = np.array([room.most_units(t, 0) for t in range(arrays.num_types)], dtype=np.int64)
        self._arrays = arrays._replace(limit=np.maximum(limit, 0), price_per_hour=room.price_per_hour)
        self._room, self._work = room, workspace(arrays, max_stages)
        self._scarce = int(np.lexsort((room.caps, -room.beside))[0])  # the fewest cores that all share, most often
        self._read_s = 0.0 if beside is None else beside.read_core_s
        self._step_s = 0.0 if beside is None else beside.step_s
        self._step = StepCosts(
            batch=float(problem.training.batch),
            micro_batch=float((beside.micro_batch or 0) if beside is not None else 0),
            server_s=(beside.server_core_s or 0.0) if beside is not None else 0.0,
            has_servers=beside is not None,
            core_price=room.core_price,
        )
        names = [resource.name for resource in problem.resources]
        wholes = () if beside is None else beside.wholes
        known = [(names.index(each.resource), each.units, each.servers) for each in wholes if each.place == "servers"]
        self._known = np.array(known, dtype=np.int64).reshape(len(known), 3)
        shape = (len(SHARES), *self._work.start.shape)
        self._rests = Rests(
            shares=np.array(SHARES),
            start=np.full(shape, math.inf),
            end=np.full(shape, math.inf),
            scarce=np.full(shape, math.inf),
            filled_s=self._least_filled(),
        )
        self._made_dear = Scarce(room, self._work, room.core_price)
        self._labels: StepLabels | None = None
        self._effort = EFFORT
        room_for = arrays.num_layers
        self._buffers = (np.zeros(room_for, np.int64), np.zeros(room_for, np.int64), np.zeros(room_for, np.int64))

    def at(
        self,
        samples_per_s: float,
        *,
        cutoff: float = math.inf,
        egress_at: float | None = None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> HourlyCost:
        """Return the cheapest stages and servers that reach a throughput; above `cutoff` a bound is enough."""
        target_s, paying = self._target_s(samples_per_s), samples_per_s if egress_at is None else egress_at
        arrays = self._paying(self._arrays, target_s, paying)
        readers = whole_count(self._read_s, target_s) if target_s > 0 else 0
        bound = self._bound(arrays, target_s, readers)
        impossible = self._impossible(paying, readers)
        if bound >= min(cutoff, impossible):
            return HourlyCost(lower_bound=math.inf if bound >= impossible else bound, route=None, exact=True)
        caps = self._room.caps - self._room.beside * readers
        met_price, met = self._first_legal(arrays, target_s, caps, readers)
        goal, beside_price = min(cutoff, impossible, met_price), self._room.core_price * readers
        if met is None and not is_late():
            small = self._by_labels(arrays, target_s, caps, goal - beside_price, readers, effort=LEAST_EFFORT)
            if small is not None:
                return self._answer(small, goal, beside_price, impossible, met)
            asked = CappedQuestion(arrays, target_s, caps, self._least_servers(target_s))
            dear = self._made_dear.bound(asked, cutoff=goal - beside_price, is_late=is_late) * (1 - SLACK)
            bound = max(bound, dear + beside_price)
            if bound >= goal:
                return HourlyCost(lower_bound=math.inf if bound >= impossible else bound, route=None, exact=True)
            met_price, met = self._first_by_surcharges(asked, readers, is_late)
        if met_price <= bound * (1 + SLACK):
            return HourlyCost(lower_bound=bound, route=met, exact=True)
        goal = min(goal, met_price)
        found = None if is_late() else self._by_labels(arrays, target_s, caps, goal - beside_price, readers)
        if found is None:
            return HourlyCost(lower_bound=bound, route=met, exact=False)
        return self._answer(found, goal, beside_price, impossible, met)

    @staticmethod
    def _answer(
        found: tuple[float, Route | None], goal: float, beside_price: float, impossible: float, met: Route | None
    ) -> HourlyCost:
        """Return what labels found below `goal`, or the legal route of that price."""
        lower_bound = min(found[0] + beside_price, goal)
        return HourlyCost(
            lower_bound=math.inf if lower_bound >= impossible else lower_bound, route=found[1] or met, exact=True
        )

    def _bound(self, arrays: ProblemArrays, target_s: float, readers: int) -> float:
        """Return what stages, servers and readers cost at least where each may take all of the time of a step."""
        if target_s <= 0:
            return math.inf
        servers = self._least_servers(target_s)
        if readers + servers > self._room.most_beside():
            return math.inf
        least = float(cheapest(arrays, self._work, arrays.price_per_hour, target_s, 1.0))
        return least + self._room.core_price * (readers + servers)

    def bound_between(self, low: float, high: float) -> float:
        """Return a bound on USD per hour over samples/s of such stages that run at `low` up to `high`.

        As `Hourly.bound_between`, with what is fixed of a step taken off its time; servers and readers are stages too.
        """
        target_s, share = self._target_s(low), (low / high if math.isfinite(high) else 0.0)
        if target_s <= 0:
            return math.inf
        arrays = self._paying(self._arrays, target_s, low)
        hourly = cheapest(arrays, self._work, arrays.price_per_hour, target_s, share)
        servers = max(share * self._least_servers(target_s), self._step.server_s / target_s)
        readers = max(share * whole_count(self._read_s, target_s), self._read_s / target_s)
        return float(hourly + self._room.core_price * (servers + readers)) / low

    def batch_seconds(self, route: Route) -> float:
        """Return what a batch takes."""
        seconds = step_seconds(self._arrays, self._step, route.types, route.lasts, route.units, route.servers)
        read_s = self._read_s / route.readers if route.readers else 0.0
        return float(self._step_s + max(seconds, read_s))

    def slowest_batch_seconds(self) -> float:
        """Return seconds that a batch takes at most: every layer on its slowest type, and every cut paid."""
        arrays = self._arrays
        layers = [arrays.compute_serial_s, arrays.compute_shared_s, arrays.comm_serial_s, arrays.comm_shared_s]
        layer_s = sum(float(np.diff(sums, axis=1).max(axis=0).sum()) for sums in layers)
        s_per_byte = (arrays.class_s_per_byte + arrays.class_site_s_per_byte).max()
        cuts_s = float((arrays.crossing_bytes * s_per_byte + arrays.class_latency_s.max()).sum())
        return self._step_s + self._read_s + 2 * (layer_s + 2 * cuts_s + self._step.server_s)

    def egress_rate(self, route: Route) -> float:
        """Return what a route pays for bytes between sites, as USD per hour over samples/s."""
        return float(egress_rate(self._arrays, route.types, route.lasts, len(route.types)))

    def _paying(self, arrays: ProblemArrays, target_s: float, samples_per_s: float) -> ProblemArrays:
        """Return arrays with which kernels find what bytes cost an hour at a throughput.

        They count a batch in every `target_s`; with what is fixed of a step, it takes longer.
        """
        if not arrays.has_egress or not 0 < target_s < math.inf:
            return arrays
        often = target_s * samples_per_s / self._step.batch
        return arrays._replace(class_usd_per_byte=arrays.class_usd_per_byte * often)

    def _target_s(self, samples_per_s: float) -> float:
        """Return the time of a step without what is fixed of it."""
        return self._step.batch / samples_per_s - self._step_s if samples_per_s > 0 else math.inf

    def _least_servers(self, target_s: float) -> int:
        return max(1, whole_count(self._step.server_s, target_s)) if self._step.has_servers else 0

    def _impossible(self, samples_per_s: float, readers: int) -> float:
        """Return more than anything costs an hour within limits."""
        arrays, room = self._arrays, self._room
        cores = room.most_beside()
        cuts = float(arrays.crossing_bytes.sum() * arrays.class_usd_per_byte.max()) * 3600 / arrays.batch
        units = float(arrays.price_per_hour @ arrays.limit)
        return (units + room.core_price * (cores + readers) + cuts * samples_per_s) * (1 + 1e-9)

    def _first_legal(
        self, arrays: ProblemArrays, target_s: float, caps: Ints, readers: int
    ) -> tuple[float, Route | None]:
        """Return a legal route and its price, where stages that have less time than the step leave one."""
        best, best_route = math.inf, None
        for number, share in enumerate(SHARES):
            work = self._work._replace(start=self._rests.start[number], end=self._rests.end[number])
            hurried_s = target_s * share
            hurried = arrays._replace(class_usd_per_byte=arrays.class_usd_per_byte * share)  # as often, in less time
            value = cheapest(hurried, work, arrays.price_per_hour, hurried_s, 1.0)
            if math.isinf(value):
                continue
            count = follow(hurried, work, hurried_s, *self._buffers)
            types, lasts, units = (buffer[:count].copy() for buffer in self._buffers)
            used = self._room.weights[:, types] @ units
            servers = self._servers_for(types, lasts, units, target_s, caps - used)
            if servers is None:
                continue
            price = float(value) + self._room.core_price * (servers + readers)
            route = Route(types=types, lasts=lasts, units=units, place=self.place, servers=servers, readers=readers)
            if price < best and not self._is_known(route):
                best, best_route = price, route
        return best, best_route

    def _first_by_surcharges(
        self, asked: CappedQuestion, readers: int, is_late: Callable[[], bool]
    ) -> tuple[float, Route | None]:
        """Return a legal route and its price, where making dear what is scarce leads to one."""
        target_s = asked.target_s

        def servers_for(types: Ints, lasts: Ints, units: Ints, left: Floats) -> int | None:
            return self._servers_for(types, lasts, units, target_s, left)

        def filled(types: Ints, lasts: Ints, units: Ints) -> float:
            servers = max(1, asked.servers)
            return float(step_seconds(self._arrays, self._step, types, lasts, units, servers)) / target_s

        found = self._made_dear.legal(asked, servers_for, filled, is_late=is_late)
        if found is None or self._is_known(found):
            return math.inf, None
        route = found._replace(place=self.place, readers=readers)
        arrays = asked.arrays
        pays = float(egress_rate(arrays, route.types, route.lasts, len(route.types))) * arrays.batch / target_s
        hourly = float(arrays.price_per_hour[route.types] @ route.units) + pays
        return hourly + self._room.core_price * (route.servers + readers), route

    def _servers_for(self, types: Ints, lasts: Ints, units: Ints, target_s: float, left: Ints | Floats) -> int | None:
        """Return the least servers with which a step of these stages takes no longer; None where there are none."""
        if (left < 0).any():
            return None
        most = int(left[self._room.beside > 0].min(initial=UNITS_WITHOUT_LIMIT)) if self._step.has_servers else 0

        def is_enough(servers: int) -> bool:
            seconds = step_seconds(self._arrays, self._step, types, lasts, units, servers)
            return bool(seconds <= target_s * (1 + SLACK))

        low = self._least_servers(target_s)
        if low > most or not is_enough(most):
            return None
        high = most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
        return low

    def _is_known(self, route: Route) -> bool:
        """Say whether a route is a layout that was measured as a whole."""
        if len(route.types) != 1:
            return False
        return any((known == (route.types[0], route.units[0], route.servers)).all() for known in self._known)

    def _by_labels(
        self,
        arrays: ProblemArrays,
        target_s: float,
        caps: Ints,
        goal: float,
        readers: int,
        *,
        effort: int | None = None,
    ) -> tuple[float, Route | None] | None:
        """Return price and route of the cheapest stages and servers below `goal`; None where effort ran out.

        A given `effort` is a look whether little does; else it is what searches before have shown to be worth it.
        """
        if self._labels is None:
            self._labels = room_for_step_labels(arrays, len(caps))
        scarce, free = self._scarce, arrays.without_egress()
        weights = self._room.weights[scarce].astype(np.float64)
        for number, share in enumerate(SHARES):
            work = self._work._replace(end=self._rests.scarce[number])
            cheapest(free, work, weights, target_s * share, 1.0)
        ended, price, count, servers = step_label_search(
            arrays,
            self._work.rounds,
            self._rests,
            self._labels,
            self._step,
            Bounds(self._room.weights, self._room.beside, caps, scarce),
            self._known,
            Search(float(target_s), float(goal), effort or self._effort),
            *self._buffers,
        )
        if not ended:
            self._effort = self._effort if effort else max(self._effort // 4, LEAST_EFFORT)
            return None
        self._effort = self._effort if effort else min(self._effort * 2, EFFORT)
        if not count:
            return math.inf, None
        types, lasts, units = (buffer[:count].copy() for buffer in self._buffers)
        route = Route(types=types, lasts=lasts, units=units, place=self.place, servers=int(servers), readers=readers)
        return float(price), route

    def _least_filled(self) -> Floats:
        """Return the least that one micro-batch spends at all stages from each layer on, by the units of the first.

        A layer on k units computes for c (1 - a + a / k). With N micro-batches, k or more, it spends at least c / N on
        one, and c (1 - a + a / k) where there are fewer. Row 0 is for any first stage.
        """
        arrays, step = self._arrays, self._step
        limit = np.maximum(arrays.limit, 1)
        most = int(limit.max(initial=1))
        rows = min(most, MOST_ROWS) + 1
        rest_s = np.zeros((rows, arrays.num_layers + 1))
        if step.micro_batch == 0:
            return rest_s
        serial, shared = np.diff(arrays.compute_serial_s), np.diff(arrays.compute_shared_s)
        runs = arrays.end_of_run > np.arange(arrays.num_layers)[None, :]
        for row in range(rows):
            pieces = float(pieces_of(step, row)) if 0 < row < MOST_ROWS else step.batch / step.micro_batch + 1 + most
            spent = (serial + shared) / pieces
            fewer = limit[:, None] > pieces  # only then can a stage have more units than there are micro-batches
            spent = np.where(fewer, np.minimum(spent, serial + shared / limit[:, None]), spent)
            spent = np.where(runs, spent, np.inf).min(axis=0)
            rest_s[row, :-1] = np.cumsum(spent[::-1])[::-1] * (1 - 1e-9)
        return rest_s
