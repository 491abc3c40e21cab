"""Which parts of the test bed work on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

from dovetail.cgroups import CpuQuota, LimitError
from testbed.hosts import Hosts
from testbed.memory import MemoryLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """What can be made here; `why_not` has the reason for each that cannot, under its name."""

    cpu_quota: bool
    memory_limit: bool
    hosts: bool
    why_not: Mapping[str, str]


@cache
def available() -> Available:
    """Try each part once, for real, and say which worked."""
    trials: dict[str, AbstractContextManager[object]] = {
        "cpu_quota": CpuQuota("trial", cores=1.0),
        "memory_limit": MemoryLimit("trial", limit_bytes=64_000_000),
        "hosts": Hosts(["trial"], rates=[1e6]),
    }
    reasons = {name: reason for name, trial in trials.items() if (reason := _why_not(trial))}
    return Available(
        cpu_quota="cpu_quota" not in reasons,
        memory_limit="memory_limit" not in reasons,
        hosts="hosts" not in reasons,
        why_not=reasons,
    )


def _why_not(trial: AbstractContextManager[object]) -> str:
    """Return why a thing cannot be made, or nothing."""
    try:
        with trial:
            return ""
    except LimitError as error:
        return f"{error.message}; hint: {error.hint}"
