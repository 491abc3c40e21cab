"""`dovetail serve`: a daemon that shares this machine between jobs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.output import errors_shown, say

if TYPE_CHECKING:
    from dovetail.spec.hosts import HostsFile


def serve(
    folder: Annotated[Path, typer.Option(help="Where the daemon keeps its state, its token and the jobs.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port it listens on; 0 takes a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="The address it listens on; others than this machine need another than the default.")
    ] = "127.0.0.1",
    nodes: Annotated[
        str | None,
        typer.Option(metavar="TYPE:WORKERSxCOUNT,...", help="What there is to share; absent: a cpu worker a core."),
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(metavar="HOSTS", help="Share the hosts of this file (hosts.toml, reached by SSH) instead."),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Who gets which workers: a name, or package.module:Class for your own.")
    ] = "dovetail",
    quota: Annotated[
        list[str] | None, typer.Option(metavar="USER=WORKERS", help="The most workers a user's jobs hold together.")
    ] = None,
    round_s: Annotated[float, typer.Option(min=0.5, help="Ask the policy this often too.")] = 30.0,
    grace_s: Annotated[float, typer.Option(min=0.5, help="How long a job may take to stop before it is ended.")] = 60.0,
    measure_s: Annotated[
        float, typer.Option(min=1.0, help="How long a job works on a size before its speed counts.")
    ] = 4.0,
) -> None:
    """Take jobs, ask a policy who gets which workers, and start, resize and stop them.

    Ctrl-C or SIGTERM ends the daemon alone: jobs go on, and the next daemon of the folder finds them.
    """
    with errors_shown():
        from dovetail.serve.daemon import serve as run
        from dovetail.serve.settings import DaemonSettings, nodes_of, parse_quotas
        from dovetail.simulator.traces.read import parse_nodes

        if on is not None and nodes is not None:
            raise typer.BadParameter("--on says what there is to share: leave --nodes away")
        hosts = None if on is None else _hosts_in(on)
        settings = DaemonSettings(
            nodes=parse_nodes(nodes or f"cpu:{len(os.sched_getaffinity(0))}x1") if hosts is None else nodes_of(hosts),
            hosts=hosts,
            policy=policy,
            quotas=parse_quotas(quota or []),
            round_s=round_s,
            grace_s=grace_s,
            measure_s=measure_s,
        )
        if host not in ("127.0.0.1", "localhost", "::1"):
            say(f"warning: {host} may be reached by others; the token travels as plain text")
        run(folder.absolute(), settings, host=host, port=port, tell=say, make_page=_page)


def _page() -> Any:
    """Return the page that the daemon serves; it asks the daemon for all that it shows."""
    from dovetail.dashboard.app import page_of_daemon

    return page_of_daemon()


def _hosts_in(path: Path) -> HostsFile:
    """Return a file of hosts, its own files by whole paths: jobs are started elsewhere."""
    import msgspec

    from dovetail.spec.files import read_struct
    from dovetail.spec.hosts import HostsFile

    found = read_struct(path, HostsFile)
    hosts = [
        host if host.key is None else msgspec.structs.replace(host, key=str(Path(host.key).expanduser().absolute()))
        for host in found.hosts
    ]
    known = str(Path(found.known_hosts).expanduser().absolute())
    return msgspec.structs.replace(found, hosts=hosts, known_hosts=known)
