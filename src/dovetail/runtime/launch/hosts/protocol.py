"""What every launcher has in common: a process somewhere, and a line to the host that it is on.

A launcher starts the coordinator and the servers beside itself and workers where their hosts are. `Handle` is a
process on whichever machine. `Line` is how one host is reached: SSH is one, and whoever brings another (a cluster of
its own) writes that class alone; which worker goes where, what is brought, what happens to a host that is lost and how
it ends are the same for all of them (`fleet`).
"""

from __future__ import annotations

from typing import Protocol

from dovetail.errors import DovetailError
from dovetail.runtime.launch.hosts.requests import Answer, Facts, Request
from dovetail.spec.hosts import Host

HERE = ""
"""What the launching machine is called where hosts are named."""


class HostProblem(DovetailError):  # noqa: N818
    """A host cannot be used: it is not reached, does not let us in, or lacks what is needed."""


class LineLost(Exception):  # noqa: N818
    """A line broke, or nobody answered in time: it may be opened again."""


class Handle(Protocol):
    """A process of a run, on whichever machine."""

    @property
    def host(self) -> str:
        """Return the name of its host, nothing for the launching machine."""
        ...

    @property
    def pid(self) -> int:
        """Return its process id on its host; 0 before that is known."""
        ...

    def how_it_ended(self) -> str | None:
        """Return how it ended, or None while it runs."""
        ...

    def ask_to_leave(self) -> None:
        """Have a worker hand its tasks to others and end."""
        ...

    def kill(self) -> None:
        """End it at once; nothing happens where it has ended."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most so long."""
        ...


class Line(Protocol):
    """The way to one host and the keeper of our processes there. Calls come from one thread at a time."""

    host: Host
    here: str
    """The launching machine's address as this host reaches it, once the line is open."""

    def open(self) -> Facts:
        """Reach the host and its keeper, which is started where there is none; again after a `LineLost`.

        What the user has to put right is a `HostProblem`; a host that is not there for now is a `LineLost` where the
        line was open before.
        """
        ...

    def call(self, request: Request, timeout_s: float) -> Answer:
        """Return the keeper's answer, or raise `LineLost`."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...
