"""How a daemon was started: what there is to share, by which policy, and for how long it waits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.errors import SpecError
from dovetail.spec.workload import NodeGroup

QUOTA = re.compile(r"([^=\s]{1,64})=(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the controller goes by."""

    nodes: tuple[NodeGroup, ...]
    policy: str = "dovetail"
    quotas: dict[str, int] = field(default_factory=dict)
    round_s: float = 30.0
    """How often the policy is asked though nothing has happened."""
    grace_s: float = 60.0
    """How long a job may take to stop before it is ended."""
    measure_s: float = 4.0
    """How long a team works before its speed counts as measured."""

    @property
    def capacity(self) -> dict[str, int]:
        """Workers of each type."""
        total: dict[str, int] = {}
        for group in self.nodes:
            total[group.type] = total.get(group.type, 0) + group.workers * group.count
        return total


def parse_quotas(words: Sequence[str]) -> dict[str, int]:
    """Return `alice=4` and others as numbers by user."""
    found = {}
    for word in words:
        match = QUOTA.fullmatch(word)
        if match is None:
            raise SpecError(f"`{word}` is no quota", hint="write USER=WORKERS, e.g. --quota alice=4")
        found[match[1]] = int(match[2])
    return found
