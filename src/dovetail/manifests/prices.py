"""What the machines of a manifest cost an hour: whole nodes of the plan's types, and the first node.

The first node holds no units. It runs what is not a worker, a core each: the launcher, the coordinator and the servers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dovetail.catalogue.data_sheets import GRAVITON3
from dovetail.catalogue.entry import CatalogueEntry
from dovetail.manifests.pool import NodePool
from dovetail.spec.first_node import FirstNode
from dovetail.spec.plan import Plan
from dovetail.spec.problem import Problem

GIB = 1 << 30
ROLES = 2
"""Processes beside the servers that do not train: the launcher and the coordinator."""
BASE_BYTES = 4 * GIB
"""Memory of the first node beside the servers' rows: Python, PyTorch and Ray."""


def size_of_first_node(servers: int, host_bytes: int) -> tuple[int, int]:
    """Return cores and bytes of the first node, by the servers on it and what each of them holds."""
    return ROLES + servers, BASE_BYTES + servers * host_bytes


def first_node_of(
    rented: Collection[CatalogueEntry], entries: Collection[CatalogueEntry], *, servers: int = 1, host_bytes: int = GIB
) -> FirstNode | None:
    """Return the first node of a plan that rents types of one cloud; None where nobody says what it costs."""
    cores, size = size_of_first_node(servers, host_bytes)
    share = _cloud_share({entry.cloud for entry in rented}, entries, cores, size)
    return None if share is None else FirstNode(price_per_hour=round(share[0], 6), cores=cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrices:
    """USD an hour; None where nobody says what a type costs."""

    by_type: Mapping[str, float | None]
    """Of all nodes of each of the plan's types: whole nodes, of which the last may have fewer units to do."""
    plan: float
    """What the plan says."""
    plan_first: float | None
    """The part of it for the first node."""
    plan_has_servers: bool
    """Whether it counts cores for servers, which the first node has here."""
    head: float | None
    head_cores: int
    head_bytes: int
    head_like: str | None
    """The type by whose price the first node's is told."""

    @property
    def total(self) -> float | None:
        """All machines together, where all prices are known."""
        known = [price for price in (*self.by_type.values(), self.head) if price is not None]
        return sum(known) if len(known) == len(self.by_type) + 1 else None

    def __str__(self) -> str:
        """Return them in words."""
        size = f"{self.head_cores} cores and {-(-self.head_bytes // GIB)} GiB"
        parts = [f"{name} {_usd(price)}" for name, price in self.by_type.items()]
        like = "" if self.head_like is None else f", as {self.head_like} costs"
        head = f"the first node {_usd(self.head)} ({size} for launcher, coordinator and servers{like})"
        total = "not known in all" if self.total is None else f"{_usd(self.total)} USD an hour"
        counted = "with its servers" if self.plan_has_servers else "without the first node"
        if self.plan_first is not None:
            counted = "with a first node" + (" and its servers" if self.plan_has_servers else "")
        return f"{total}: {', '.join(parts)}, {head}; the plan's own price is {_usd(self.plan)}, {counted}"


def prices_of(
    plan: Plan,
    groups: Sequence[NodePool],
    head_cores: int,
    head_bytes: int,
    *,
    problem: Problem | None,
    entries: Mapping[str, CatalogueEntry],
) -> NodePrices:
    """Return what nodes cost: by the problem's prices, which may be spot prices, else the catalogue's."""
    known = {
        name: entry.spot_usd_per_hour if plan.spot and entry.spot_usd_per_hour else entry.on_demand_usd_per_hour
        for name, entry in entries.items()
    }
    known |= {} if problem is None else {each.name: each.price_per_hour for each in problem.resources}
    by_type = {
        group.type: group.nodes * group.units * known[group.type] if group.type in known else None for group in groups
    }
    head, like = _head_price(groups, head_cores, head_bytes, problem, entries.values())
    return NodePrices(
        by_type=by_type,
        plan=plan.cost_per_hour,
        plan_first=plan.first_node_per_hour,
        plan_has_servers=plan.servers is not None,
        head=head,
        head_cores=head_cores,
        head_bytes=head_bytes,
        head_like=like,
    )


def _head_price(
    groups: Sequence[NodePool],
    cores: int,
    size: int,
    problem: Problem | None,
    entries: Collection[CatalogueEntry],
) -> tuple[float | None, str | None]:
    """Return what the first node costs, and by which type that is told: its share of one that the cloud rents out.

    What the problem says goes first, as far as its cores do. Where there is no cloud, a core costs what the problem's
    CPU type does.
    """
    said = None if problem is None else problem.first_node
    if said is not None and (said.cores is None or cores <= said.cores):
        return said.price_per_hour, None
    share = _cloud_share({group.cloud for group in groups}, entries, cores, size)
    if share is not None:
        return share
    for resource in () if problem is None else problem.resources:
        if resource.kind == "cpu" and resource.name not in {entry.instance for entry in entries}:
            return cores * resource.price_per_hour, resource.name
    return None, None


def _cloud_share(
    clouds: Collection[str | None], entries: Collection[CatalogueEntry], cores: int, size: int
) -> tuple[float, str] | None:
    """Return the least share of a CPU type of the one cloud that has so many cores and bytes, and the type.

    Clouds ask twice as much for twice the machine, so a type's size does not matter.
    """
    shares = [
        (max(cores / entry.vcpus, size / entry.memory_bytes) * entry.on_demand_usd_per_hour, entry.id)
        for entry in entries
        if {entry.cloud} == set(clouds)
        and entry.kind == "cpu"
        and entry.chip is not GRAVITON3  # for which the image would have to be built anew
        and entry.vcpus is not None
        and entry.memory_bytes is not None
    ]
    return min(shares, default=None)


def _usd(price: float | None) -> str:
    return "at a price nobody says" if price is None else f"{price:.4g}"
