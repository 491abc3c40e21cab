"""`dovetail dashboard`: a page over plans, runs, a cluster and simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import errors_shown, say


def dashboard(
    things: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|RUNS|PROBLEM|WORKLOAD|URL]...",
            help="A run, a folder of runs, a problem, a workload, a daemon's address or folder; absent: runs/.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port it listens on; 0 takes a free one.")] = 8420,
    host: Annotated[
        str, typer.Option(help="The address it listens on; others than this machine need another than the default.")
    ] = "127.0.0.1",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write all of it into one file, and serve nothing.")
    ] = None,
    title: Annotated[str, typer.Option(help="With --out: what is written at the top.")] = "Dovetail",
) -> None:
    """Look at plans, runs, a cluster and simulations in a browser.

    Ctrl-C ends it. Examples:

    dovetail dashboard runs

    dovetail dashboard examples/problems/ctr-dnn.toml examples/workloads/twelve-jobs.json

    dovetail dashboard runs/ctr-dnn-1 --out report.html
    """
    with errors_shown():
        from dovetail.dashboard.things import open_things

        found = open_things(things or [])
        if out is not None:
            from dovetail.dashboard.report import HtmlReport

            report = HtmlReport(title)
            report.add(found)
            report.write(out)
            say(f"written: {out}")
            return
        from dovetail.dashboard.server import HERE, serve_dashboard

        if host not in HERE:
            say(f"warning: {host} may be reached by others, who can look at all that is here")
        serve_dashboard(found, host=host, port=port, tell=say)
