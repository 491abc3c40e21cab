"""`dovetail catalogue`: resource types that clouds rent out, with their prices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.cli.options import AsJson
from dovetail.cli.output import errors_shown, print_json

if TYPE_CHECKING:
    from dovetail.catalogue import CatalogueEntry
    from dovetail.spec import Problem

ProblemFile = Annotated[Path, typer.Argument(metavar="PROBLEM", help="The problem: TOML or JSON.")]
MinSamplesPerS = Annotated[float | None, typer.Option(help="The floor, instead of the file's.")]
FinishIn = Annotated[str | None, typer.Option(metavar="TIME", help="The floor as a time: 90m, 6h, 2d.")]
Spot = Annotated[bool, typer.Option("--spot", help="Spot prices for types from the catalogue.")]
OwnCatalogues = Annotated[list[Path] | None, typer.Option(help="Your own catalogue file, beside ours.")]
"""What every command that reads a problem takes, for `problem_from`."""


def catalogue(
    cloud: Annotated[str | None, typer.Option(help="Only this cloud, e.g. aws.")] = None,
    kind: Annotated[Literal["cpu", "gpu", "other"] | None, typer.Option(help="Only this kind.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Only this accelerator, e.g. A100.")] = None,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="At most this price.")] = None,
    min_memory_gb: Annotated[float | None, typer.Option(help="At least so much memory a unit.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="By spot prices.")] = False,
    sort: Annotated[Literal["price", "memory", "flops", "name"], typer.Option(help="Sort by.")] = "price",
    own: Annotated[list[Path] | None, typer.Option(help="Your own catalogue file, beside ours.")] = None,
    as_json: AsJson = False,
) -> None:
    """List resource types that can be named in a problem file: type = "aws:g5.xlarge"."""
    with errors_shown(as_json=as_json):
        from dovetail.catalogue import users_catalogue

        entries = users_catalogue(own or ()).select(
            cloud=cloud,
            kind=kind,
            accelerator=accelerator,
            max_usd_per_hour=max_usd_per_hour,
            min_memory_bytes=None if min_memory_gb is None else min_memory_gb * 1e9,
            spot=spot,
            sort_by=sort,
        )
        if as_json:
            import msgspec

            print_json(msgspec.json.encode({"types": entries}))
        else:
            _print(entries)


def problem_from(
    path: Path, own: list[Path] | None, *, spot: bool, min_samples_per_s: float | None, finish_in: str | None
) -> Problem:
    """Return the problem in a file, with its types from the catalogue and its floor from the command line, if given."""
    from dovetail.catalogue import read_problem_with, users_catalogue
    from dovetail.units import parse_duration_s

    if min_samples_per_s is not None and finish_in is not None:
        raise typer.BadParameter("give --min-samples-per-s or --finish-in, not both")
    problem = read_problem_with(users_catalogue(own or ()), path, spot=spot)
    if finish_in is not None:
        min_samples_per_s = problem.training.total_samples / parse_duration_s(finish_in)
    return problem if min_samples_per_s is None else problem.with_floor(min_samples_per_s)


def _print(entries: list[CatalogueEntry]) -> None:

    from dovetail.cli.tables import make_table, wide_console

    table = make_table(
        ("type", "kind", "accelerators", "vCPU", "memory GB", "TFLOP/s", "USD/h", "spot USD/h"),
        text=("type", "kind", "accelerators"),
    )
    for entry in entries:
        flops = entry.flops_per_s()
        memory = entry.unit_memory_bytes
        table.add_row(
            entry.id,
            entry.kind,
            f"{entry.num_accelerators:g} x {entry.accelerator}" if entry.accelerator else "",
            f"{entry.vcpus:g}" if entry.vcpus else "",
            f"{memory / 1e9:,.0f}" if memory else "",
            f"{flops / 1e12:,.1f}" if flops else "",
            f"{entry.on_demand_usd_per_hour:,.4g}",
            f"{entry.spot_usd_per_hour:,.4g}" if entry.spot_usd_per_hour else "",
        )
    console = wide_console()
    console.print(table)
    dates = sorted({entry.prices_as_of for entry in entries if entry.prices_as_of})
    console.print(f"{len(entries)} types; prices as of {', '.join(map(str, dates)) or 'unknown'}", highlight=False)
