"""`--on`: the machines that a command runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.output import say

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet

OnHosts = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="HOSTS",
        help="Run on these machines: a file of hosts that SSH reaches (hosts.toml), the Ray cluster of this machine "
        "(ray), or another (HEAD:PORT).",
    ),
]


@contextmanager
def opened(on: str | None) -> Iterator[Fleet | None]:
    """Reach the machines that `--on` names, and leave them as they were; without it there are none."""
    if on is None:
        yield None
        return
    from dovetail.runtime.launch.hosts.open import fleet_of

    with fleet_of(on) as fleet:
        say(f"on {len(fleet.hosts)} hosts: {', '.join(f'{h.name} ({h.units} x {h.type})' for h in fleet.hosts)}")
        yield fleet
