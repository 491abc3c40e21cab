"""Where the processes of a run live: the launcher's one hook for limits on them and for other hosts."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Protocol

from dovetail.cgroups import CpuQuota
from dovetail.errors import SpecError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.launch.entry import EnterHost
from dovetail.spec.run import Run


class Sandbox(Protocol):
    """What a launcher puts its processes under; entered before the first is started, left after the last has ended."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def entrance(self, name: str) -> EnterHost | None:
        """Return how a worker gets to a host of its own, or None where it stays on the launcher's.

        A worker on another host is not local: its tensors go over TCP, never through shared memory.
        """
        ...

    def started(self, name: str, process_id: int) -> None:
        """Take in a process that was just started, for the first time or again."""
        ...


class Quotas:
    """Everyone on this host; who has `cores` in the run file gets that much of the processor."""

    def __init__(self, blueprint: Blueprint) -> None:
        """Read who has how much."""
        run = blueprint.run
        cores = {name: worker.cores for name, worker in run.each_worker()}
        cores |= {spec.name: run.servers.cores for spec in blueprint.servers}
        self._cores = {name: limit for name, limit in cores.items() if limit is not None}
        self._things = ExitStack()
        self.quotas: dict[str, CpuQuota] = {}
        """In force, by the name of the process; they may be changed under way."""

    def __enter__(self) -> Quotas:
        """Put the quotas in force."""
        with ExitStack() as things:
            for name, cores in self._cores.items():
                self.quotas[name] = things.enter_context(CpuQuota(name, cores))
            self._things = things.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the quotas."""
        self._things.close()

    def entrance(self, name: str) -> EnterHost | None:
        """Return None: a run file knows no other hosts."""
        return None

    def started(self, name: str, process_id: int) -> None:
        """Put a process under its quota."""
        if name in self.quotas:
            self.quotas[name].add(process_id)


def check_ring(run: Run, sandbox: Sandbox) -> None:
    """Refuse a ring across hosts that nobody vouched for."""
    away = [name for name, _ in run.each_worker() if sandbox.entrance(name) is not None]
    if away and run.training.dense == "ring" and not run.network.trusted_network:
        raise SpecError(
            f'is "ring", and worker `{away[0]}` is on another host: a ring neither encrypts nor authenticates',
            key="training.dense",
            hint='set network.trusted_network = true where that is acceptable, or dense = "ps"',
        )
