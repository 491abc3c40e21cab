"""What `--on` names: a file of hosts that are reached over SSH."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import DovetailError
from dovetail.runtime.launch.hosts.fleet import Fleet
from dovetail.spec.files import read_struct
from dovetail.spec.hosts import HostsFile


def fleet_of(on: str) -> Fleet:
    """Return the hosts that `--on` names, not opened yet."""
    path = Path(on)
    if path.suffix not in (".toml", ".json") and not path.is_file():
        raise DovetailError(f"`--on {on}` names no hosts", hint="give a file of hosts, such as hosts.toml")
    from dovetail.runtime.launch.hosts.ssh import ssh_lines  # noqa: PLC0415 - asyncio only where it is needed

    file = read_struct(path, HostsFile)
    return Fleet(ssh_lines(file), lost_s=file.lost_s)
