"""`dovetail join`: one more worker for a run that goes on already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.options import OnHosts, Trust, opened
from dovetail.cli.output import errors_shown, say
from dovetail.runtime.launch.stopping import Stopping


def join(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that goes on.")],
    name: Annotated[str | None, typer.Option(help="The worker's name; absent: joined-ID.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the worker.")] = 1,
    device: Annotated[str, typer.Option(help='Where it computes: "cpu", "cuda", "cuda:1", ...')] = "cpu",
    over_network: Annotated[
        bool, typer.Option("--over-network", help="Use TCP: this is not the machine that the servers are on.")
    ] = False,
    on: OnHosts = None,
    trust: Trust = False,
) -> None:
    """Work for a run until it is over; Ctrl-C ends this worker and others do its tasks.

    With --on, a worker on each of those machines does, NAME-HOST.
    """
    with (
        errors_shown(),
        opened(on) as fleet,
        Stopping(say, "leaving, others do this worker's tasks; once more ends at once") as stopping,
    ):
        from dovetail.runtime.launch.join import join as work_for
        from dovetail.runtime.launch.join import join_on

        say(f"working for {run} ...")
        try:
            if fleet is not None:
                join_on(run, fleet, name=name, threads=threads, device=device, trust=trust, leaves=stopping.asked)
            else:
                work_for(
                    run,
                    name=name,
                    threads=threads,
                    device=device,
                    share_host=not over_network,
                    trust=trust,
                    leaves=stopping.asked,
                )
        except KeyboardInterrupt:
            say("ended at once")
            raise typer.Exit(130) from None
        say("left the run" if stopping.is_asked else "the run is over")
