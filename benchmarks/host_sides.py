"""The launchers that `many_hosts.py` compares, each with workers on the same hosts of the test bed.

The launcher itself, with coordinator and servers, is on the host `head`; a worker is on each of the hosts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

import dovetail
from dovetail.runtime.launch.entry import EnterHost
from dovetail.runtime.launch.hosts.fleet import Fleet, fleet_of, over_ssh
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.hosts import Host, HostsFile
from dovetail.spec.run import Run
from testbed import Hosts, RayNodes, enter, inside
from testbed.ssh import PORT, SshServers

NAMES = ("head", "near", "far")
LONGEST_S = 200.0
OnReport = Callable[[Report], None]


class Side(contextlib.AbstractContextManager["Side"], Protocol):
    """A launcher, ready to train runs on some hosts."""

    def train(self, run: Run, folder: Path, on_report: OnReport) -> None:
        """Train a run with a worker on each host."""


@runtime_checkable
class LosesHosts(Side, Protocol):
    """A launcher whose hosts can be taken away."""

    def kill(self, name: str) -> None:
        """Take a host away, with all that runs on it."""

    def restore(self, name: str) -> None:
        """Bring it back."""


class InNamespaces(contextlib.nullcontext[None]):
    """A bed in which the local launcher's workers live on hosts of the test bed."""

    def __init__(self, hosts: Hosts, run: Run) -> None:
        """Give each worker a host, in order."""
        super().__init__()
        names = [name for name, _ in run.each_worker()]
        self._namespaces = dict(zip(names, map(hosts.namespace, NAMES), strict=True))

    def entrance(self, name: str) -> EnterHost | None:
        """Return how a worker gets to its host."""
        return partial(enter, self._namespaces[name])

    def started(self, name: str, process_id: int) -> None:
        """Leave a process as it is."""


class Local(contextlib.nullcontext["Local"]):
    """The launcher of one machine, its workers moved into the hosts."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        """Keep the hosts."""
        super().__init__(self)
        self._hosts = hosts

    def train(self, run: Run, folder: Path, on_report: OnReport) -> None:
        """Train on the hosts' links."""
        network = msgspec.structs.replace(run.network, address=self._hosts.address("head"))
        run = msgspec.structs.replace(run, network=network)
        with inside(self._hosts.namespace("head")):
            prepare(run, folder)
            with LocalRun(folder, sandbox=InNamespaces(self._hosts, run)) as local:
                local.wait(on_report, timeout_s=LONGEST_S)


class OnRay:
    """A Ray cluster with a node on each host."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        """Give every host room for one worker more: who loses its host goes to another."""
        self._hosts = hosts
        self._nodes = RayNodes(hosts, {name: {"core": 2} for name in NAMES}, folder / "ray")

    def __enter__(self) -> Self:
        """Start the nodes."""
        self._nodes.__enter__()
        os.environ.update(self._nodes.environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the nodes."""
        self._nodes.__exit__(kind, error, trace)

    def train(self, run: Run, folder: Path, on_report: OnReport) -> None:
        """Train as `dovetail train --on HEAD:PORT` does."""
        with inside(self._hosts.namespace("head")), fleet_of(self._nodes.address) as fleet:
            train_on(fleet, run, folder, on_report)

    def kill(self, name: str) -> None:
        """Take a node away."""
        self._nodes.kill(name)

    def restore(self, name: str) -> None:
        """Have a node come back."""
        self._nodes.start(name)
        self._nodes.wait_for(name)


class OverSsh:
    """An SSH server on each host, with processes of its own."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        """Give every host room for one worker more: who loses its host goes to another."""
        self._hosts, self._folder = hosts, folder
        self._servers = SshServers(hosts, NAMES, folder / "ssh")

    def __enter__(self) -> Self:
        """Start the servers; what the hosts have for a Python is this one, with the same package."""
        self._servers.__enter__()
        python = self._folder / "python"
        package = Path(dovetail.__file__).parents[1]
        python.write_text(f'#!/bin/sh\nexport PYTHONPATH={package}\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        hosts = [
            Host(
                name=name,
                address=self._hosts.address(name),
                port=PORT,
                user="root",
                key=str(self._servers.key),
                python=str(python),
                units=2,
            )
            for name in NAMES
        ]
        self._file = HostsFile(hosts=hosts, known_hosts=str(self._servers.known_hosts), lost_s=5.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the servers."""
        self._servers.__exit__(kind, error, trace)

    def train(self, run: Run, folder: Path, on_report: OnReport) -> None:
        """Train as `dovetail train --on hosts.toml` does."""
        with inside(self._hosts.namespace("head")), over_ssh(self._file) as fleet:
            train_on(fleet, run, folder, on_report)

    def kill(self, name: str) -> None:
        """Take a host away."""
        self._servers.kill(name)

    def restore(self, name: str) -> None:
        """Have a host come back."""
        self._servers.start(name)


def train_on(fleet: Fleet, run: Run, folder: Path, on_report: OnReport) -> None:
    """Train on the hosts of a fleet."""
    run = fleet.settled(run)
    prepare(run, folder, elsewhere=fleet.place(run, folder))
    with LocalRun(folder, fleet=fleet) as local:
        local.wait(on_report, timeout_s=LONGEST_S)


SIDES: dict[str, Callable[[Hosts, Path], Side]] = {"local": Local, "ray": OnRay, "ssh": OverSsh}


@contextlib.contextmanager
def opened(names: list[str], hosts: Hosts, folder: Path) -> Iterator[dict[str, Side]]:
    """Have some sides ready, all on the same hosts."""
    with contextlib.ExitStack() as things:
        yield {name: things.enter_context(SIDES[name](hosts, folder)) for name in names}
