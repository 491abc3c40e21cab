"""Which worker goes to which host: by the type that its stage is planned for, by name, and by the units it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.errors import PlanError, SpecError
from dovetail.spec.hosts import Host
from dovetail.spec.run import Run, RunWorker


def units_taken(worker: RunWorker) -> int:
    """Return how many units of a host a worker takes: a GPU, or a core for each thread."""
    return 1 if is_on_gpu(worker) else worker.threads


def is_on_gpu(worker: RunWorker) -> bool:
    """Say whether a worker computes on a GPU."""
    return not worker.device.startswith("cpu")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The workers of a run that are not on the launching machine, and where those are called that others call."""

    workers: frozenset[str] = frozenset()
    addresses: Mapping[str, str] = field(default_factory=dict)


class UnitPlacement:
    """The units of some hosts, and who takes them."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        """Begin with all units free."""
        self.hosts = {host.name: host for host in hosts}
        self.free = {host.name: host.units for host in hosts}
        self.host_of: dict[str, str] = {}
        self._taken: dict[str, int] = {}

    def place_all(self, run: Run) -> dict[str, str]:
        """Place every worker of a run; refuse what does not fit, before anything is started."""
        for name, worker in run.each_worker():
            self.place(name, worker, run)
        return self.host_of

    def place(self, name: str, worker: RunWorker, run: Run, *, without: Sequence[str] = ()) -> str:
        """Give a worker the fitting host with the most free units: its name says where it is from now on.

        A worker that had a place gives it back first. Hosts `without` are not taken.
        """
        self.give_back(name)
        needed = units_taken(worker)
        fitting = [host for host in self._fitting(name, worker, run) if host.name not in without]
        room = [host for host in fitting if self.free[host.name] >= needed]
        if not room:
            free = ", ".join(f"{host.name} has {self.free[host.name]} of {host.units}" for host in fitting)
            raise PlanError(
                f"worker `{name}` takes {needed} unit{'s' * (needed != 1)}, and no host has so many free: "
                f"{free or 'none is there'}",
                hint="give the hosts more units, or the run fewer workers or threads",
            )
        chosen = max(room, key=lambda host: self.free[host.name])
        self.free[chosen.name] -= needed
        self.host_of[name], self._taken[name] = chosen.name, needed
        return chosen.name

    def give_back(self, name: str) -> None:
        """Free the units of a worker, where it has any."""
        host = self.host_of.pop(name, None)
        if host is not None:
            self.free[host] += self._taken.pop(name)

    def _fitting(self, name: str, worker: RunWorker, run: Run) -> list[Host]:
        """Return the hosts that a worker may be on, whoever else is there."""
        planned = run.stages[worker.stage].resource if run.stages else ""
        wanted = worker.host or planned
        if wanted:
            found = [host for host in self.hosts.values() if wanted in (host.name, host.type)]
            if not found:
                types = ", ".join(sorted({f"`{host.type}`" for host in self.hosts.values()}))
                names = ", ".join(f"`{host}`" for host in self.hosts)
                raise SpecError(
                    f"worker `{name}` is to be on `{wanted}`, and the hosts are {names}, of type {types}",
                    hint="name the types in the hosts file as the plan does, or plan for those that there are",
                )
        else:
            found = [host for host in self.hosts.values() if host.on_gpu == is_on_gpu(worker)]
            if not found:
                what = "GPUs" if is_on_gpu(worker) else "cores"
                raise SpecError(
                    f'worker `{name}` computes on "{worker.device}", and no host has {what} for units',
                    hint="see `type` and `gpus` in the hosts file, and `device` in the run file",
                )
        return found
