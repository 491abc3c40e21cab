"""How a daemon was started: what there is to share, by which policy, and for how long it waits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from dovetail.errors import SpecError
from dovetail.serve.submission import Submission
from dovetail.spec.hosts import Host, HostsFile
from dovetail.spec.workload import NodeGroup

QUOTA = re.compile(r"([^=\s]{1,64})=(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """What the controller goes by."""

    nodes: tuple[NodeGroup, ...]
    hosts: HostsFile | None = None
    """The machines whose units are shared, each a node of `nodes`; None: this one alone."""
    policy: str = "dovetail"
    quotas: dict[str, int] = field(default_factory=dict)
    round_s: float = 30.0
    """How often the policy is asked though nothing has happened."""
    grace_s: float = 60.0
    """How long a job may take to stop before it is ended."""
    measure_s: float = 4.0
    """How long a team works before its speed counts as measured."""

    def resizes(self, submission: Submission) -> bool:
        """Say whether a job's workers come and go while it runs; on hosts it goes on elsewhere from a checkpoint."""
        return self.hosts is None and submission.run is not None and not submission.fixed_workers

    @property
    def capacity(self) -> dict[str, int]:
        """Workers of each type."""
        total: dict[str, int] = {}
        for group in self.nodes:
            total[group.type] = total.get(group.type, 0) + group.workers * group.count
        return total


def nodes_of(hosts: HostsFile) -> tuple[NodeGroup, ...]:
    """Return hosts as nodes of a cluster."""
    return tuple(NodeGroup(type=host.type, workers=host.units) for host in hosts.hosts)


def hosts_with(hosts: HostsFile, type_: str, units: Sequence[int]) -> HostsFile:
    """Return the hosts that some units of a type are on, each with so many of them: a job's part of the cluster.

    Units of a type are numbered through its hosts in the order of the file.
    """
    found: list[Host] = []
    first = 0
    for host in (each for each in hosts.hosts if each.type == type_):
        count = sum(first <= unit < first + host.units for unit in units)
        if count:
            found.append(msgspec.structs.replace(host, units=count))
        first += host.units
    return msgspec.structs.replace(hosts, hosts=found)


def parse_quotas(words: Sequence[str]) -> dict[str, int]:
    """Return `alice=4` and others as numbers by user."""
    found = {}
    for word in words:
        match = QUOTA.fullmatch(word)
        if match is None:
            raise SpecError(f"`{word}` is no quota", hint="write USER=WORKERS, e.g. --quota alice=4")
        found[match[1]] = int(match[2])
    return found
