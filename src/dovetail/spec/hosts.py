"""A file of hosts: the machines that a run may have, how they are reached, and how much of a type each one is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from dovetail.errors import SpecError
from dovetail.spec.checks import check_name, check_number, check_whole_number
from dovetail.spec.run_sections import Meta, Section

HOST_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
LOST_S = 20.0


class Host(Section, frozen=True):
    """A machine."""

    name: Annotated[str, Meta(description="what the host is called here, in run files and in messages")]
    address: Annotated[str, Meta(description="its address, for SSH and for the other hosts' processes")]
    type: Annotated[str, Meta(description="the type of its units, as plans and problem files call it")] = "cpu"
    units: Annotated[int, Meta(description="how many units it has: cores, or GPUs, that workers may take")] = 1
    gpus: Annotated[bool | None, Meta(description="whether its units are GPUs; absent: by the name of the type")] = None
    port: Annotated[int, Meta(description="the port that its SSH server listens on")] = 22
    user: Annotated[str | None, Meta(description="who logs in; absent: this user")] = None
    key: Annotated[str | None, Meta(description="the file of the private key; absent: the agent's, or ~/.ssh/id_*")] = (
        None
    )
    python: Annotated[str, Meta(description="the Python that has Dovetail there, such as /opt/venv/bin/python")] = (
        "python3"
    )
    reach: Annotated[
        str | None, Meta(description="the address by which other hosts reach it, where that is not `address`")
    ] = None
    bring: Annotated[
        bool, Meta(description="whether this Dovetail is copied there, where only its dependencies are installed")
    ] = False

    def __post_init__(self) -> None:
        """Refuse names that are no files', and numbers out of range."""
        check_name(self)
        if not HOST_NAME.fullmatch(self.name):
            raise SpecError(f'is "{self.name}"', key="name", hint="use letters, digits, `_`, `-` and `.`, at most 64")
        if not self.address:
            raise SpecError("is empty", key="address", hint="write an address or a name, such as 10.0.0.7")
        if not self.python.strip():
            raise SpecError("is empty", key="python", hint="write a path, such as /opt/venv/bin/python")
        check_whole_number(self, "units", at_least=1)
        check_whole_number(self, "port", at_least=1)
        if self.port > 65535:
            raise SpecError(f"is {self.port}", key="port", hint="ports end at 65535")

    @property
    def reached_at(self) -> str:
        """The address by which other hosts reach it."""
        return self.reach or self.address

    @property
    def on_gpu(self) -> bool:
        """Whether its units are GPUs."""
        return "cpu" not in self.type.lower() if self.gpus is None else self.gpus


class HostsFile(Section, frozen=True):
    """The hosts of a run."""

    hosts: Annotated[Sequence[Host], Meta(description="one table [[host]] for each machine")] = msgspec.field(
        name="host"
    )
    known_hosts: Annotated[str, Meta(description="the file of host keys that are believed, as OpenSSH writes it")] = (
        "~/.ssh/known_hosts"
    )
    lost_s: Annotated[
        float, Meta(description="after so many seconds without a word a host counts as dead, and ends what it runs")
    ] = LOST_S

    def __post_init__(self) -> None:
        """Refuse no hosts, and two of one name."""
        if not self.hosts:
            raise SpecError("is empty", key="host", hint="add at least one [[host]]")
        check_number(self, "lost_s", above=0.0)
        names = [host.name for host in self.hosts]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(f'has two called "{twice[0]}"', key="host", hint="give each its own name")
