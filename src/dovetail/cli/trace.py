"""`dovetail trace`: workloads to simulate, made up from a seed or read from other people's traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dovetail.cli.options import AsJson
from dovetail.cli.output import errors_shown, print_json, say

trace = typer.Typer(help="Make and convert workloads.", no_args_is_help=True)


@trace.callback()
def root() -> None:
    """Make and convert workloads."""


@trace.command()
def make(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The workload file to write: JSON.")],
    pattern: Annotated[Literal["poisson", "bursty", "diurnal"], typer.Option(help="How jobs arrive.")] = "poisson",
    contention: Annotated[
        Literal["none", "moderate", "extreme"], typer.Option(help="A job every 1000, 500 or 250 s on 64 workers.")
    ] = "extreme",
    jobs: Annotated[int | None, typer.Option(min=1, help="How many jobs; absent = 44, 114 or 206.")] = None,
    nodes: Annotated[str, typer.Option(metavar="TYPE:WORKERSxCOUNT,...", help="The cluster.")] = "v100:4x16",
    restart_s: Annotated[float, typer.Option(min=0, help="What a start takes, in seconds.")] = 10.0,
    round_s: Annotated[float | None, typer.Option(help="Decide this often too, in seconds.")] = None,
    loss: Annotated[bool, typer.Option("--loss/--no-loss", help="Give every job a noisy loss curve.")] = True,
    seed: Annotated[int, typer.Option(help="Another seed, another workload.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a workload up: arrivals at a level of contention, sizes that spread far, speed curves of rings."""
    with errors_shown(as_json=as_json):
        from dovetail.simulator.traces.make import make_workload
        from dovetail.simulator.traces.read import parse_nodes
        from dovetail.spec.workload import write_workload

        workload = make_workload(
            pattern=pattern,
            contention=contention,
            seed=seed,
            num_jobs=jobs,
            nodes=parse_nodes(nodes),
            restart_s=restart_s,
            round_s=round_s,
            with_loss=loss,
        )
        write_workload(workload, out)
    _tell(len(workload.jobs), out, as_json=as_json)


@trace.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="TRACE", help="Gavel's .trace, or a .csv of submit,duration,gpus.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The workload file to write: JSON.")],
    nodes: Annotated[str, typer.Option(metavar="TYPE:WORKERSxCOUNT,...", help="The cluster.")],
    speeds: Annotated[Path | None, typer.Option(help="For a .trace: Gavel's steps per second.")] = None,
    elastic: Annotated[bool, typer.Option("--elastic", help="For a .trace: sizes may change, as measured.")] = False,
    restart_s: Annotated[float, typer.Option(min=0, help="What a start takes, in seconds.")] = 10.0,
    round_s: Annotated[float | None, typer.Option(help="Decide this often too, in seconds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Convert another simulator's trace to a workload."""
    with errors_shown(as_json=as_json):
        from dovetail.simulator.traces.read import read_any
        from dovetail.spec.workload import write_workload

        workload = read_any(source, nodes=nodes, speeds=speeds, restart_s=restart_s, round_s=round_s, elastic=elastic)
        write_workload(workload, out)
    _tell(len(workload.jobs), out, as_json=as_json)


def _tell(num_jobs: int, out: Path, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json(msgspec.json.encode({"out": str(out), "jobs": num_jobs}))
    else:
        say(f"written: {out}, {num_jobs:,} jobs")
