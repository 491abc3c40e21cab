"""The hosts of a run: opened together, given the run's workers, and left together.

with Fleet(lines, lost_s=20.0) as fleet:
    run = fleet.settled(run)
    elsewhere = fleet.place(run)         # for `prepare`
    handle = fleet.start("worker-0", folder, run)
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from dovetail.errors import DovetailError, PlanError, SpecError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import LOGS
from dovetail.runtime.launch.entry import first_worker
from dovetail.runtime.launch.hosts.protocol import (
    AskMissing,
    AskPorts,
    Handle,
    HostConnection,
    HostProblem,
    MissingPaths,
    Ports,
)
from dovetail.runtime.launch.hosts.remote import RemoteHost
from dovetail.runtime.launch.hosts.shipped_files import code_of, data_paths, files_for
from dovetail.runtime.planned.from_plan import Machine
from dovetail.runtime.prepare.placement import Elsewhere, UnitPlacement, is_on_gpu
from dovetail.spec.files import read_struct
from dovetail.spec.hosts import LOST_S, Host, HostsFile
from dovetail.spec.run import Run, RunWorker


class Fleet:
    """Hosts, and which worker is on which of them."""

    def __init__(self, lines: Sequence[HostConnection], *, lost_s: float = LOST_S) -> None:
        """Keep the lines; nobody is called yet."""
        self.remotes = {line.host.name: RemoteHost(line, lost_s=lost_s) for line in lines}
        self.places = UnitPlacement([line.host for line in lines])

    @property
    def hosts(self) -> list[Host]:
        """Return the hosts."""
        return [remote.line.host for remote in self.remotes.values()]

    def __enter__(self) -> Fleet:
        """Reach every host, all at once; the first that cannot be is told."""
        try:
            with ThreadPoolExecutor(max_workers=min(32, len(self.remotes))) as pool:
                for opened in [pool.submit(remote.open) for remote in self.remotes.values()]:
                    opened.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the hosts as they were."""
        self.close()

    def close(self) -> None:
        """End what still runs on the hosts, and hang up."""
        with ThreadPoolExecutor(max_workers=min(32, len(self.remotes))) as pool:
            list(pool.map(RemoteHost.close, self.remotes.values()))

    @property
    def machine(self) -> Machine:
        """Return what the hosts have together, for plans."""
        facts = [remote.facts for remote in self.remotes.values() if remote.facts is not None]
        return Machine(
            cores=sum(host.units for host in self.hosts if not host.on_gpu),
            gpus=sum(host.units for host in self.hosts if host.on_gpu),
            memory_bytes=float(sum(fact.memory_bytes for fact in facts)),
            called="the hosts have",
            is_elsewhere=True,
        )

    # -- before a run --------------------------------------------------------------------------------------------------

    def settled(self, run: Run) -> Run:
        """Return a run as it is on these hosts: listening where they reach it, with data by whole paths."""
        address, options = run.network.address, dict(run.data.options)
        if is_loopback(address) and not all(is_loopback(host.reached_at) for host in self.hosts):
            address = next(iter(self.remotes.values())).line.here
        if paths := data_paths(options):
            whole = [str(Path(path).absolute()) for path in paths]
            options["path"] = whole[0] if isinstance(options["path"], str) else whole
        return msgspec.structs.replace(
            run,
            network=msgspec.structs.replace(run.network, address=address),
            data=msgspec.structs.replace(run.data, options=options),
        )

    def place(self, run: Run, folder: Path) -> Elsewhere:
        """Give every worker its host, and every worker that others call a port there; refuse what cannot be."""
        self._check(run, folder)
        self.places = UnitPlacement(self.hosts)
        host_of = self.places.place_all(run)
        called: dict[str, list[str]] = {}
        for name, worker in run.each_worker():
            if worker.stage:
                called.setdefault(host_of[name], []).append(name)
        addresses: dict[str, str] = {}
        for host, names in called.items():
            reached_at = self.remotes[host].line.host.reached_at
            found = self.remotes[host].call(AskPorts(address=reached_at, count=len(names)))
            if isinstance(found, Ports):
                addresses |= {name: f"tcp://{reached_at}:{port}" for name, port in zip(names, found.ports, strict=True)}
        return Elsewhere(workers=frozenset(host_of), addresses=addresses)

    def _check(self, run: Run, folder: Path) -> None:
        """Refuse a run that these hosts cannot have."""
        if any(worker.cores is not None for worker in run.workers):
            raise SpecError(
                "is a quota of the launching machine, and the workers are on other hosts",
                key="worker.cores",
                hint="leave it out, or run without --on",
            )
        if run.table.place == "device":
            raise SpecError(
                'is "device", the GPU of one process, and the workers are on other hosts',
                key="table.place",
                hint="leave it out, or run without --on",
            )
        code_of(run)
        paths = data_paths(run.data.options)
        for host in self.remotes.values():
            if missing := self._missing(host, paths):
                raise HostProblem(
                    f"host `{host.name}` has no {missing[0]}, which the data are read from",
                    hint="copy the data there, to the same path, or have them on a disk that all hosts share",
                )
        if run.training.dense == "ring":
            self._check_ring(run, folder)

    def _check_ring(self, run: Run, folder: Path) -> None:
        """Refuse a ring that nobody vouched for, or whose members cannot keep what they hold."""
        if not run.network.trusted_network:
            raise SpecError(
                'is "ring", and workers are on other hosts: a ring neither encrypts nor authenticates',
                key="training.dense",
                hint='set network.trusted_network = true where that is acceptable, or dense = "ps"',
            )
        for host in self.remotes.values():
            if self._missing(host, [str(folder.absolute())]):
                raise HostProblem(
                    f"host `{host.name}` does not see {folder.absolute()}, where the members of a ring keep what they "
                    "hold",
                    hint='give a folder on a disk that all hosts share, at the same path, or dense = "ps"',
                )

    @staticmethod
    def _missing(host: RemoteHost, paths: Sequence[str]) -> tuple[str, ...]:
        """Return which paths a host does not have."""
        found = host.call(AskMissing(paths=tuple(paths))) if paths else None
        return found.paths if isinstance(found, MissingPaths) else ()

    # -- while it goes on ----------------------------------------------------------------------------------------------

    def start(self, name: str, folder: Path, run: Run) -> Handle:
        """Start a worker on its host, or on another one where that is lost; on its own once it is back, else."""
        worker = dict(run.each_worker()).get(name)
        if worker is not None:
            return self.start_as(worker, name, folder, run)
        try:
            return self.start_as(first_worker(run), name, folder, run)
        except PlanError as error:  # more workers were asked for than there are units: the run goes on without
            return NeverStarted(str(error))

    def start_as(self, worker: RunWorker, name: str, folder: Path, run: Run) -> Handle:
        """Start a worker with these settings."""
        away = [host for host, remote in self.remotes.items() if not remote.takes_more]
        place = self.places.host_of.get(name)
        if place is None or (place in away and not run.stages):
            try:
                place = self.places.place(name, worker, run, without=away)
            except PlanError:
                if place is None:
                    raise
                self.places.place(name, worker, run)
                place = self.places.host_of[name]
        if is_on_gpu(worker):
            worker = msgspec.structs.replace(worker, device=f"cuda:{self._gpu_of(name)}")
        remote = self.remotes[place]
        remote.logs_folder = folder / LOGS
        try:
            files = files_for(folder, name, run)
        except OSError as error:
            raise TrainingError(f"{name} cannot be started: {error}", hint="see to the run's folder") from None
        settings = msgspec.structs.replace(worker, name=name, count=1)
        return remote.start(name, files, arguments=(msgspec.json.encode(settings).decode(),))

    def left(self, name: str) -> None:
        """Take back the units of a worker that does not come back."""
        self.places.give_back(name)

    def _gpu_of(self, name: str) -> int:
        """Return which GPU of its host a worker has: they are taken in turn."""
        place = self.places.host_of[name]
        here = sorted(other for other, host in self.places.host_of.items() if host == place)
        return here.index(name) % self.remotes[place].line.host.units


class NeverStarted:
    """A process that no host has room for."""

    host, pid = "", 0

    def __init__(self, why: str) -> None:
        """Keep why."""
        self._why = why

    def how_it_ended(self) -> str | None:
        """Return why it never was."""
        return self._why

    def ask_to_leave(self) -> None:
        """Do nothing: it is not there."""

    def kill(self) -> None:
        """Do nothing: it is not there."""

    def wait(self, timeout_s: float) -> None:
        """Return at once."""


def is_loopback(address: str) -> bool:
    """Say whether an address is of a machine's own alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


ON_RAY = "ray"
HEAD = re.compile(r"[^/\\]+:\d+")
"""A head's name or address, and its port."""


def fleet_of(on: str) -> Fleet:
    """Return the hosts that `--on` names, not opened yet."""
    if on == ON_RAY or HEAD.fullmatch(on):
        from dovetail.runtime.launch.hosts.ray.connection import lines_of  # noqa: PLC0415 - only where it is needed

        lines, lost_s = lines_of(None if on == ON_RAY else on)
        return Fleet(lines, lost_s=lost_s)
    path = Path(on)
    if path.suffix not in (".toml", ".json") and not path.is_file():
        raise DovetailError(
            f"`--on {on}` names no hosts",
            hint="give a file of hosts, such as hosts.toml, `ray` for the cluster of this machine, or HEAD:PORT of one",
        )
    return over_ssh(read_struct(path, HostsFile))


def over_ssh(file: HostsFile) -> Fleet:
    """Return the hosts of a file, not opened yet."""
    from dovetail.runtime.launch.hosts.ssh import ssh_lines  # noqa: PLC0415 - asyncio only where it is needed

    return Fleet(ssh_lines(file), lost_s=file.lost_s)
