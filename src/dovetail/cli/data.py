"""`dovetail data`: look at training data, and make some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.output import errors_shown, print_line, say
from dovetail.units import format_count

if TYPE_CHECKING:
    from dovetail.data import Source

data = typer.Typer(help="Look at training data, and make some.", no_args_is_help=True)

Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the data, e.g. rows_per_slot=1000."),
]
Seed = Annotated[int, typer.Option(help="Of generated data.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@data.command()
def inspect(
    name: Annotated[
        str, typer.Argument(metavar="DATA", help="clicks, criteo, csv, parquet, or package.module:function.")
    ],
    path: Annotated[
        list[str] | None, typer.Option(help="Files, folders, patterns or addresses of criteo, csv, parquet.")
    ] = None,
    option: Options = None,
    rows: Annotated[int, typer.Option(help="How many samples to look at.")] = 100_000,
    max_bad_rows: Annotated[int, typer.Option(help="How many broken rows to skip before giving up.")] = 0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Say what some data consist of, which rows are broken, and the best any model can do where that is known."""
    from dovetail.data import load_data
    from dovetail.data.summary import summarise

    with errors_shown(as_json=as_json):
        options = parse_options(option or [])
        if path:
            options |= {"path": path, "max_bad_rows": max_bad_rows}
        if name == "clicks":
            options = {"seed": seed, **options}
        facts = summarise(load_data(name, **options), num_samples=rows)
    _show(facts, as_json=as_json)


@data.command()
def make(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The Parquet file to write.")],
    rows: Annotated[int, typer.Option(help="How many samples to make.")] = 1_000_000,
    truth: Annotated[
        str, typer.Option(help="Who clicks: logistic, deep, two-tables, dot, user-item, next-item.")
    ] = "deep",
    option: Options = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a generated click log whose best reachable result is known."""
    from dovetail.data import load_data
    from dovetail.data.files.write import write_parquet
    from dovetail.data.summary import summarise

    with errors_shown(as_json=as_json):
        source: Source = load_data("clicks", truth=truth, seed=seed, **parse_options(option or []))
        written = write_parquet(source, out, num_samples=rows)
        facts = summarise(source, num_samples=min(rows, 100_000))
    say(f"wrote {format_count(written)} samples to {out}")
    _show({"file": str(out), "written": written, **facts}, as_json=as_json)


@data.command()
def bench(
    name: Annotated[str, typer.Argument(metavar="DATA", help="A path, or the name of data as in `inspect`.")],
    path: Annotated[list[str] | None, typer.Option(help="Files, folders, patterns or addresses.")] = None,
    option: Options = None,
    rows: Annotated[int, typer.Option(help="How many samples to read at most.")] = 1_000_000,
    max_bad_rows: Annotated[int, typer.Option(help="How many broken rows to skip before giving up.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how fast data are read, in order and in training order, cold and cached, and say what bounds it."""
    import tempfile

    from dovetail.data import load_data
    from dovetail.data.bench import bench as measure

    with errors_shown(as_json=as_json), tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        options = parse_options(option or [])
        if path:
            options |= {"path": path}
        if max_bad_rows:
            options |= {"max_bad_rows": max_bad_rows}
        is_file = hasattr(load_data(name, **options), "parts")
        kept = {"cache": folder} if is_file else {}

        def opened(**others: Any) -> Source:
            return load_data(name, **{**kept, **options, **others})

        found = measure(opened, samples=rows, is_file=is_file)
    if as_json:
        print_line(json.dumps(found))
        return
    print_line(f"{found['samples']:,} samples, opened in {found['open_s']:.3f} s, {found['cores']} cores")
    for each in found["figures"]:
        readers = f"{each['readers']} reader{'' if each['readers'] == 1 else 's'}"
        print_line(f"{each['what']:<28}  {readers:<10}  {format_count(each['samples_per_s'])} samples/s")
    print_line(f"bound by {found['bound']}")
    print_line(f"to do: {found['advice']}")


def parse_options(words: list[str]) -> dict[str, Any]:
    """Return `key=value` words as options, values written as in `--set`."""
    from dovetail.spec.run import parse_setting

    return dict(parse_setting(word, example="rows_per_slot=1000") for word in words)


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print facts, one a line or as JSON."""
    if as_json:
        print_line(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        shown = f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else value
        print_line(f"{name.replace('_', ' '):<{width}}  {shown}")
