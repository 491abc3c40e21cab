"""Everyone who takes part, and which generation of the run they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.runtime.coordinator.members import Member, Server, Worker
from dovetail.runtime.messages import Reset
from dovetail.spec.run import RunWorker

GRACE_S = 20.0
"""How long the first step waits for workers that are still starting."""


@dataclass(slots=True, kw_only=True)
class Roster:
    """Servers and workers that are there."""

    server_names: Sequence[str]
    """Those that the run has."""
    settings: dict[str, RunWorker]
    """Of the workers that the run file names; others may join."""
    generation: int = 0
    """Goes up whenever work under way is thrown away."""
    era: int = 0
    """The generation that began with a checkpoint; those after it, up to the next, went on from one another.

    The state of a server or of a ring's member is told by its era and its steps: two of one era and as many steps hold
    the same.
    """
    began_at: int = -1
    """The step at which the generation began."""
    servers: dict[str, Server] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    stages: Sequence[Sequence[str]] = ()
    """The workers of each stage after the first, by name; nobody else may be one."""
    stage_workers: dict[str, Worker] = field(default_factory=dict)
    first_worker_s: float | None = None

    @property
    def num_servers(self) -> int:
        """Return how many servers the run has."""
        return len(self.server_names)

    @property
    def missing_servers(self) -> list[str]:
        """Return the servers that are not there."""
        return [name for name in self.server_names if name not in self.servers]

    @property
    def servers_are_ready(self) -> bool:
        """Say whether every server is there, and of this generation."""
        return not self.missing_servers and all(server.is_ready for server in self.servers.values())

    @property
    def by_name(self) -> list[Worker]:
        """Return the workers in the order of their names."""
        return [self.workers[name] for name in sorted(self.workers)]

    def may_begin(self, now_s: float) -> bool:
        """Say whether the first step can begin: all workers are there, or have had their time to come."""
        if self.first_worker_s is None or not all(self.staff):
            return False
        return len(self.workers) >= len(self.settings) or now_s - self.first_worker_s > GRACE_S

    @property
    def staff(self) -> tuple[tuple[str, ...], ...]:
        """Return who is there, of each stage after the first."""
        return tuple(tuple(name for name in names if name in self.stage_workers) for names in self.stages)

    @property
    def everyone(self) -> list[Member]:
        """Return all who are there."""
        return [*self.servers.values(), *self.stage_workers.values(), *self.workers.values()]

    def reset(self, step: int = -1, *, went_back: bool = False) -> Reset:
        """Return what begins a generation at a step, that of a checkpoint where the run `went_back`."""
        return Reset(generation=self.generation, stages=self.staff, step=step, went_back=went_back)

    def begin(self, step: int, *, went_back: bool) -> Reset:
        """Begin the generation at a step; return what all workers are told."""
        self.began_at = step
        return self.reset(step, went_back=went_back)

    def member(self, name: str) -> Member | None:
        """Return who has a name."""
        return self.servers.get(name) or self.stage_workers.get(name) or self.workers.get(name)

    def sender(self, address: bytes) -> Member | None:
        """Return whose address it is."""
        member = self.member(address.partition(b"/")[0].decode(errors="replace"))
        return member if member is not None and member.address == address else None
