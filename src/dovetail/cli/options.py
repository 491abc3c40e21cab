"""Options that several commands have: the machines to run on, a model, its data, prices, what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.output import say
from dovetail.errors import DovetailError

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
    from dovetail.runtime.launch.hosts.fleet import fleet_of

    with fleet_of(on) as fleet:
        say(f"on {len(fleet.hosts)} hosts: {', '.join(f'{h.name} ({h.units} x {h.type})' for h in fleet.hosts)}")
        yield fleet


def with_key(key_file: Path | None, *folders: Path | None) -> None:
    """Have what lies in some folders read and written with a key, where one is given, whatever their files name."""
    from dovetail.encryption import keep_encrypted

    for folder in folders:
        if key_file is not None and folder is not None:
            keep_encrypted(folder, key_file)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run code that the folder names even if others can write the folder.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The key of a run that is kept encrypted; absent: the one that the run's own file names."
    ),
]
OwnModel = Annotated[str | None, typer.Option(help="package.module:Class of a run that began with a module object.")]
ModelName = Annotated[str, typer.Argument(help="ctr-dnn, 2emb, dlrm, matchnet, nce, or package.module:function.")]
ModelOptions = Annotated[
    list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the model.")
]
DATA_HELP = "A path, clicks, a format (parquet, csv, criteo, arrow, ...), or package.module:function."
DataName = Annotated[str, typer.Option(help=DATA_HELP)]
OtherData = Annotated[str | None, typer.Option(help=DATA_HELP)]
DataOptions = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the data, e.g. path=day.tsv.gz.")
]
ShortRuns = Annotated[
    float,
    typer.Option(
        "--short-runs-s",
        min=0.0,
        help="Seconds, in all, for short runs that measure what runs beside layers; 0: layers alone.",
    ),
]
Prices = Annotated[
    list[str] | None, typer.Option(metavar="NAME=USD", help="USD per hour of `cpu` (one core) or `gpu`.")
]


def parsed_prices(words: list[str] | None) -> dict[str, float]:
    """Return what a unit of each type costs, of words NAME=USD."""
    usd: dict[str, float] = {}
    for text in words or []:
        name, _, value = text.partition("=")
        try:
            usd[name] = float(value)
        except ValueError:
            raise DovetailError(f"--price {text} is not NAME=USD", hint="write it like --price cpu=0.04") from None
    return usd


EXPERT = "Expert options"
"""The panel of what few people type; most of it is a key of the run file."""
ReplanAbove = Annotated[
    float,
    typer.Option(
        min=0.0, help="With --replan: the part by which a stage's throughput may be off.", rich_help_panel=EXPERT
    ),
]
ReplanSteps = Annotated[
    int,
    typer.Option(min=1, help="With --replan: over how many steps stages are measured.", rich_help_panel=EXPERT),
]
