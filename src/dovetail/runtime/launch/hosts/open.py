"""What `--on` names: a file of hosts that are reached over SSH, or a Ray cluster."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail.errors import DovetailError
from dovetail.runtime.launch.hosts.fleet import Fleet
from dovetail.spec.files import read_struct
from dovetail.spec.hosts import HostsFile

ON_RAY = "ray"
HEAD = re.compile(r"[^/\\]+:\d+")
"""A head's name or address, and its port."""


def fleet_of(on: str) -> Fleet:
    """Return the hosts that `--on` names, not opened yet."""
    if on == ON_RAY or HEAD.fullmatch(on):
        from dovetail.runtime.launch.hosts.on_ray.line import lines_of  # noqa: PLC0415 - only where it is needed

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
