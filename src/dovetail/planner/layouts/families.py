"""All layouts that a problem allows, asked as one: the least of their prices, and the least of their bounds.

The searches of the exact planner ask for the cheapest hourly price at a throughput. Where a problem says what machines
share and what runs beside its layers, that is the least over one process on each type, layouts that were measured as a
whole, and stages over servers. What the searches prove then holds for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Literal

from dovetail.cost.beside import served
from dovetail.planner.arrays import ProblemArrays, as_arrays
from dovetail.planner.cheapest_route import Route
from dovetail.planner.demands import Demands
from dovetail.planner.hourly import Hourly, HourlyCost, HourlyPrices
from dovetail.planner.layouts.first_node import WithFirstNode
from dovetail.planner.layouts.one_process import MeasuredWhole, OneProcess
from dovetail.planner.layouts.over_servers import OverServers
from dovetail.planner.layouts.room import Room, all_machines_bytes, room_of
from dovetail.spec import Layer, Problem

Kind = Literal["process", "workers"]
Family = OneProcess | MeasuredWhole | OverServers


def is_plain(problem: Problem) -> bool:
    """Say whether units share no machine and nothing runs beside the layers."""
    return not problem.machines and problem.beside is None


def hourly_prices(problem: Problem, demands: Demands, *, pays_egress: bool = True) -> HourlyPrices:
    """Return what answers the searches for a problem; bytes between sites are free unless `pays_egress`."""
    prices = _of_units(problem, demands, pays_egress=pays_egress)
    return WithFirstNode(prices, problem.first_node_per_hour) if problem.first_node_per_hour else prices


def _of_units(problem: Problem, demands: Demands, *, pays_egress: bool) -> HourlyPrices:
    """Return what answers them for units and what runs beside the layers."""
    if not is_plain(problem):
        return Families(
            problem, max_stages=demands.max_stages, split_stages=demands.split_stages, pays_egress=pays_egress
        )
    arrays = as_arrays(problem, split_stages=demands.split_stages)
    return Hourly(arrays if pays_egress else arrays.without_egress(), max_stages=demands.max_stages)


class Families:
    """Answers for one problem with machines, or with something beside its layers; as `Hourly` gives them for others."""

    least_egress_rate = 0.0  # one process pays for no bytes
    limits_bind = False

    def __init__(
        self,
        problem: Problem,
        *,
        max_stages: int | None = None,
        split_stages: bool = False,
        pays_egress: bool = True,
        kinds: Collection[Kind] = ("process", "workers"),
    ) -> None:
        """Set up, with one process, several workers, or both."""
        self.needs_plan = True
        self.is_late: Callable[[], bool] = lambda: False
        self._batch = problem.training.batch
        self._room = room_of(problem, fed=problem.beside is not None)
        self.has_egress = False
        self.members: list[Family] = []
        if "process" in kinds:
            self.members += _processes(problem, self._room)
        self.members += _measured(problem, self._room, kinds)
        stages = _stages_of(problem, split_stages=split_stages) if "workers" in kinds else None
        if stages is not None:
            on_servers, arrays = stages
            arrays = arrays if pays_egress else arrays.without_egress()
            self.has_egress = arrays.has_egress
            self.members.append(OverServers(on_servers, arrays, self._room, max_stages=max_stages))

    def at(
        self, samples_per_s: float, *, cutoff: float = math.inf, egress_at: float | None = None, within: float = 0.0
    ) -> HourlyCost:
        """Return the cheapest layout that reaches `samples_per_s`; above `cutoff` a bound is all that is asked for."""
        bound, price, best = math.inf, math.inf, None
        open_bound = math.inf  # of what is not answered exactly
        for member in self.members:
            if isinstance(member, OverServers):
                goal = min(cutoff, price)
                answer = member.at(samples_per_s, cutoff=goal, egress_at=egress_at, is_late=self.is_late)
            else:
                answer = member.at(samples_per_s)
            bound = min(bound, answer.lower_bound)
            if not answer.exact:
                open_bound = min(open_bound, answer.lower_bound)
            if answer.route is not None:
                its_price = self.price(answer.route) + self._egress(member, answer.route, egress_at or samples_per_s)
                if its_price < price:
                    price, best = its_price, answer.route
        return HourlyCost(lower_bound=min(bound, price), route=best, exact=open_bound >= min(price, cutoff))

    def relaxed(self, samples_per_s: float) -> float:
        """Return a bound on what any layout costs per hour and sample/s at this throughput or at any higher one."""
        return self.bound_between(samples_per_s, math.inf)

    def bound_between(self, low: float, high: float) -> float:
        """Return a bound on what any layout costs per hour and sample/s that runs at `low` up to `high` samples/s."""
        return min((member.bound_between(low, high) for member in self.members), default=math.inf)

    def provisioned(self, route: Route, min_samples_per_s: float) -> tuple[float, Route | None]:
        """Return the USD per hour over samples/s of a route, whose units are what they are."""
        return self.rate(route), route

    def price(self, route: Route) -> float:
        """Return what all units and cores of a route cost per hour."""
        whole = self._whole(route)
        if whole is not None:
            return whole.price()
        hourly = float(self._room.price_per_hour[route.types] @ route.units)
        return hourly + self._room.core_price * (route.servers + route.readers)

    def rate(self, route: Route) -> float:
        """Return the USD per hour over samples/s of a route."""
        member = self._member(route)
        return self.price(route) / self.pace(route) + self._egress(member, route, 1.0)

    def pace(self, route: Route) -> float:
        """Return the samples/s of a route."""
        seconds = self._member(route).batch_seconds(route)
        return self._batch / seconds if seconds > 0 else math.inf

    def slowest_pace(self) -> float:
        """Return samples/s that any layout reaches."""
        slowest_s = max((member.slowest_batch_seconds() for member in self.members), default=math.inf)
        return self._batch / slowest_s

    def _egress(self, member: Family, route: Route, samples_per_s: float) -> float:
        """Return what a route pays an hour for bytes between sites at a throughput."""
        return member.egress_rate(route) * samples_per_s if isinstance(member, OverServers) and self.has_egress else 0.0

    def _whole(self, route: Route) -> MeasuredWhole | None:
        wholes = (member for member in self.members if isinstance(member, MeasuredWhole))
        return next((whole for whole in wholes if whole.is_it(route)), None)

    def _member(self, route: Route) -> Family:
        """Return the family of a route."""
        whole = self._whole(route)
        if whole is not None:
            return whole
        for member in self.members:
            if isinstance(member, OneProcess) and route.place == "local" and member.t == route.types[0]:
                return member
            if isinstance(member, OverServers) and route.place == member.place:
                return member
        raise AssertionError(f"no family has {route}")


def _processes(problem: Problem, room: Room) -> list[OneProcess]:
    """Return one process on each type that can run every layer."""
    if problem.beside is None or "local" not in problem.beside.places:
        return []
    return [
        OneProcess(problem, room, t)
        for t, resource in enumerate(problem.resources)
        if all(resource.name in layer.on for layer in problem.layers)
    ]


def _measured(problem: Problem, room: Room, kinds: Collection[Kind]) -> list[MeasuredWhole]:
    """Return the layouts that were measured as a whole, and may be chosen."""
    names = [resource.name for resource in problem.resources]
    wholes = problem.beside.wholes if problem.beside is not None else ()
    return [
        MeasuredWhole(problem, room, whole, names.index(whole.resource))
        for whole in wholes
        if problem.beside is not None
        and whole.place in problem.beside.places
        and ("process" if whole.place == "local" else "workers") in kinds
        and all(whole.resource in layer.on for layer in problem.layers)
    ]


def _stages_of(problem: Problem, *, split_stages: bool) -> tuple[Problem, ProblemArrays] | None:
    """Return the problem with its rows on servers, and its arrays; None where rows cannot be there."""
    beside = problem.beside
    if beside is not None:
        if beside.server_core_s is None or "servers" not in beside.places:
            return None
        embeddings = [layer for layer in problem.layers if layer.kind == "embedding"]
        if not all(_can_be_served(problem, layer) for layer in embeddings):
            return None
        rows = sum(layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes for layer in embeddings)
        if rows > all_machines_bytes(problem):
            return None
        problem = served(problem)
    return problem, as_arrays(problem, split_stages=split_stages)


def _can_be_served(problem: Problem, layer: Layer) -> bool:
    """Say whether an embedding has a type to be had on which it is known what rows on servers take."""
    clients = problem.beside.client_s if problem.beside is not None else {}
    return any(name in clients and problem.resource(name).units_to_be_had > 0 for name in layer.on)
