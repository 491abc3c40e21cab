"""Three machines that SSH reaches, as tests have them: network, processes, caches and run folders of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import dovetail
from dovetail.runtime.launch.hosts.fleet import Fleet, over_ssh
from dovetail.spec.hosts import Host, HostsFile
from dovetail.spec.toml import to_toml
from testbed import Hosts
from testbed.hosts import inside
from testbed.ssh import PORT, SshServers

NAMES = ("a", "b", "c")


@dataclass
class Machines:
    """The machines, and where the launching one keeps its runs, which they do not see."""

    hosts: Hosts
    servers: SshServers
    folder: Path
    runs: Path
    file: HostsFile

    def fleet(self, lost_s: float = 8.0, **changed: object) -> Fleet:
        """Return the three hosts; `changed` is otherwise about the second."""
        a, b, c = self.file.hosts
        file = msgspec.structs.replace(self.file, hosts=[a, msgspec.structs.replace(b, **changed), c], lost_s=lost_s)
        return over_ssh(file)

    def write(self) -> Path:
        """Write the hosts file, and return where it is."""
        path = self.folder / "hosts.toml"
        table = msgspec.to_builtins(self.file)
        table["host"] = [{key: value for key, value in host.items() if value is not None} for host in table["host"]]
        path.write_text(to_toml(table))
        return path

    def left(self) -> list[Path]:
        """Return what is left of runs on the hosts."""
        return [path for name in NAMES for path in (self.folder / "ssh" / f"cache-{name}").glob("dovetail/hosts/*")]


def make_python(path: Path, *first: Path) -> Path:
    """Write what a host has for a Python: this one, with the package under test."""
    found = os.pathsep.join(map(str, [*first, Path(dovetail.__file__).parents[1]]))
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH={found} OMP_NUM_THREADS=1\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@contextmanager
def three_machines(folder: Path, *, rates: list[float | None] | None = None) -> Iterator[Machines]:
    """Have three machines; the calling thread is on the launching one, which they all reach."""
    runs = folder / "runs"
    runs.mkdir()
    python = make_python(folder / "python")
    with Hosts(NAMES, rates) as hosts, SshServers(hosts, NAMES, folder / "ssh", hidden=[runs]) as servers:
        file = HostsFile(
            hosts=[
                Host(
                    name=name, address=hosts.address(name), port=PORT, user="root", key=str(servers.key),
                    python=str(python), units=2,
                )
                for name in NAMES
            ],
            known_hosts=str(servers.known_hosts),
        )  # fmt: skip
        with inside(hosts.hub):
            yield Machines(hosts, servers, folder, runs, file)
