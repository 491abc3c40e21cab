"""Nodes of a Ray cluster as hosts: types and units from their resources, and the line to the keeper on each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from dovetail.runtime.launch.hosts.protocol import (
    CloseKeeper,
    HostFacts,
    HostProblem,
    KeeperAnswer,
    KeeperRequest,
    ProcessStates,
    RequestRefused,
    StartProcess,
    Unreachable,
    decode_answer,
    encode,
)
from dovetail.runtime.launch.hosts.ray.cluster import RayCluster
from dovetail.runtime.launch.hosts.ray.messages import Ask, Forget, Hold, LetGo, Node, Open
from dovetail.runtime.prepare.placement import units_taken
from dovetail.spec.hosts import HOST_NAME, Host
from dovetail.spec.run import RunWorker

LOST_S = 10.0
OPEN_S = 75.0
HOLD_S = 5.0
"""How long Ray may take to reserve what was free a moment ago."""
SPARE_S = 2.0
"""What passing a request on may take beside the answer."""
OWN = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources that every node has by itself; others are types, but for those with these beginnings."""
NO_TYPES = ("node:", "accelerator_type:", "bundle")


class RayConnection:
    """The line to the keeper on a node, for the units of one type."""

    def __init__(self, cluster: RayCluster, host: Host, here: str, resources: Mapping[str, float]) -> None:
        """Keep what one unit is to Ray."""
        self.cluster, self.host, self.here = cluster, host, here
        self._unit = dict(resources)
        self._keeper = ""
        self._holders: set[str] = set()
        """Workers whose units are reserved."""
        cluster.use()

    def open(self) -> HostFacts:
        """Have a keeper on the node; where the process that speaks to Ray has ended, by another one."""
        self.cluster.connect_again()
        name, address = self.host.name, self.host.address
        facts = decode_answer(self.cluster.call(lambda number: Open(number, name, address), OPEN_S))
        if not isinstance(facts, HostFacts):
            raise Unreachable(f"a strange answer: {type(facts).__name__}")
        if facts.keeper != self._keeper:  # whoever was there is gone
            self._keeper = facts.keeper
            for worker in list(self._holders):
                self._let_go(worker)
        return facts

    def call(self, request: KeeperRequest, timeout_s: float) -> KeeperAnswer:
        """Return the keeper's answer; a worker's units are reserved from its start to its end."""
        if isinstance(request, StartProcess) and (refused := self._hold(request)) is not None:
            return refused
        said = encode(request)
        answer = decode_answer(
            self.cluster.call(lambda number: Ask(number, self.host.name, said, timeout_s), timeout_s + SPARE_S)
        )
        if isinstance(answer, ProcessStates):
            for worker, state in answer.states.items():
                if state.ended:
                    self._let_go(worker)
        if isinstance(request, CloseKeeper):
            self.cluster.tell(Forget(self.host.name))
        return answer

    def close(self) -> None:
        """Hang up."""
        with suppress(Unreachable):
            self.cluster.tell(Forget(self.host.name))
        self.cluster.leave()

    def _hold(self, start: StartProcess) -> RequestRefused | None:
        """Reserve the units of a worker; say so where Ray has given them to somebody else."""
        if start.kind != "process" or not start.arguments:
            return None
        units = units_taken(msgspec.json.decode(start.arguments[0], type=RunWorker))
        resources = {name: each * units for name, each in self._unit.items()}
        key, address = self._key(start.name), self.host.address
        try:
            self.cluster.call(lambda number: Hold(number, key, address, resources, HOLD_S), HOLD_S + SPARE_S)
        except HostProblem as problem:
            return RequestRefused(error=problem.message, hint=problem.hint)
        self._holders.add(start.name)
        return None

    def _let_go(self, worker: str) -> None:
        """Give back the units of a worker, where it has any."""
        if worker in self._holders:
            self._holders.discard(worker)
            self.cluster.tell(LetGo(self._key(worker)))

    def _key(self, worker: str) -> str:
        """Return what a worker's reservation is called."""
        return f"{self.host.name}/{worker}"


def lines_of(head: str | None) -> tuple[list[RayConnection], float]:
    """Return lines to the nodes of the Ray cluster with a head at HEAD:PORT, or of the one that this machine is in.

    With them comes after how many seconds without a word a node counts as dead.
    """
    cluster = RayCluster(head or "auto", lost_s=LOST_S)
    connected = cluster.connect()
    hosts = hosts_of(connected.nodes)
    if not hosts:
        cluster.close()
        raise HostProblem(
            f"no node of the Ray cluster{f' at {head}' if head else ''} has a unit free",
            hint="start nodes with CPUs, GPUs or resources of your types: ray start --resources='{\"type\": 2}'",
        )
    return [RayConnection(cluster, host, connected.here, unit) for host, unit in hosts], LOST_S


def hosts_of(nodes: tuple[Node, ...]) -> list[tuple[Host, dict[str, float]]]:
    """Return a host for every type that a node has units of, and what one unit is to Ray.

    Types are the resources that whoever started the node gave it. A node without any has the types `cpu` and `gpu`.
    """
    found = []
    names = [node.name for node in nodes]
    for node in nodes:
        name = node.name if HOST_NAME.fullmatch(node.name) and names.count(node.name) == 1 else node.address
        types = {kind: int(count) for kind, count in node.free.items() if _is_type(kind)}
        units = {kind: {kind: 1.0} for kind in types}
        if not types:
            types = {"cpu": int(node.free.get("CPU", 0)), "gpu": int(node.free.get("GPU", 0))}
            units = {"cpu": {"CPU": 1.0}, "gpu": {"GPU": 1.0}}
        types = {kind: count for kind, count in types.items() if count >= 1}
        for kind, count in types.items():
            own = name if len(types) == 1 else f"{name}-{kind}"
            on_gpu = node.gpus > 0 and "cpu" not in kind.lower()
            host = Host(name=_as_name(own), address=node.address, type=kind, units=count, gpus=on_gpu)
            found.append((host, units[kind] | ({"GPU": 1.0} if on_gpu else {})))
    return found


def _is_type(resource: str) -> bool:
    """Say whether a resource is a type, and not one that Ray has by itself or for its groups."""
    return resource not in OWN and not resource.startswith(NO_TYPES) and "_group_" not in resource


def _as_name(name: str) -> str:
    """Return a name that can stand in a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:64]
