"""`dovetail table`: what a checkpoint of an embedding table holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.options import KeyFile, with_key
from dovetail.cli.output import errors_shown, print_json, print_line
from dovetail.units import format_bytes

if TYPE_CHECKING:
    from dovetail.embedding.checkpoints.inspect import CheckpointSummary

BAR_WIDTH = 40


def table(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder that table.save was given.")],
    hot: Annotated[int, typer.Option(min=0, help="How many of the most used keys to show.")] = 10,
    hit_ratio: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Say the least device_bytes with which this part of look-ups will hit."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the access counts: a .png, .svg or .html file.")] = None,
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check an embedding table's checkpoint, and say what it holds: rows, tiers, hot keys, a histogram."""
    from dovetail.embedding.checkpoints.inspect import inspect

    with errors_shown(as_json=as_json):
        if key_file is not None:
            with_key(key_file, path)
        else:
            _with_key_of_run(path)
        summary = inspect(path, num_hot=hot, wanted_hit_ratio=hit_ratio)
        if plot is not None:
            _draw(summary, plot)
    if as_json:
        import msgspec

        print_json(msgspec.json.encode(summary))
    else:
        _show(summary)


def _with_key_of_run(path: Path) -> None:
    """Have the key that its run names, where the table lies in the folder of one."""
    from dovetail.encryption import keep_encrypted

    for folder in path.absolute().parents:
        if (folder / "blueprint.json").is_file():
            from dovetail.runtime.blueprint import Blueprint

            keep_encrypted(path, Blueprint.read(folder).run.checkpoint.key_file)
            return


def _show(summary: CheckpointSummary) -> None:
    optimizer = dict(summary.optimizer)
    name = optimizer.pop("name")
    settings = ", ".join(f"{key} {value:g}" for key, value in optimizer.items())
    print_line(f"rows       {summary.rows:,} of width {summary.width}, every checksum right")
    on_device = f"{summary.device_rows:,} rows were on a device, " if summary.device_rows else ""
    in_ram = f"{summary.host_rows:,} in RAM" if on_device else f"{summary.host_rows:,} rows were in RAM"
    print_line(f"tiers      {on_device}{in_ram} and {summary.disk_rows:,} on disk")
    print_line(f"optimizer  {name} ({settings})")
    print_line(f"shard      {summary.shard} of {summary.num_shards}, seed {summary.seed}, step {summary.step:,}")
    print_line(f"values     up to {summary.largest_value:.4g}, {summary.num_not_finite:,} not finite")
    print_line("chain")
    for link in summary.chain:
        print_line(f"  {link.name}  {link.rows:,} rows, {link.tombstones:,} tombstones, {format_bytes(link.bytes)}")
    if summary.hot_keys:
        print_line("hot keys   " + ", ".join(f"{key} ({count})" for key, count in summary.hot_keys))
    print_line("rows by access count")
    most = max((rows for _, rows in summary.rows_by_count), default=0)
    for label, rows in summary.rows_by_count:
        print_line(f"  {label:>9}  {rows:>12,}  {'#' * round(BAR_WIDTH * rows / most)}".rstrip())
    print_line("look-ups that a tier with room for so many rows will have, foretold, and device_bytes for such a tier")
    for budget in summary.budgets:
        print_line(f"  {budget.rows:>12,}  {budget.hit_ratio:6.1%}  {format_bytes(budget.device_bytes)}")
    if (least := summary.least_budget) is not None:
        print_line(f"least      device_bytes={least.device_bytes}, {least.rows:,} rows, for {least.hit_ratio:.1%}")


def _draw(summary: CheckpointSummary, path: Path) -> None:
    from dovetail.charts.figure import axes_in_inches, new_figure, save_figure, write_title
    from dovetail.charts.style import INK, MUTED

    labels = [label for label, _ in summary.rows_by_count]
    figure = new_figure(8.0, 4.5)
    write_title(figure, "Rows by access count", f"{summary.rows:,} rows, step {summary.step:,}", left=0.9)
    axes = axes_in_inches(figure, left=0.9, bottom=0.8, width=6.8, height=2.7)
    axes.set_axis_on()
    axes.bar(range(len(labels)), [rows for _, rows in summary.rows_by_count], color=INK)
    axes.set_xticks(range(len(labels)), labels, color=MUTED, fontsize=8)
    axes.set_xlabel("aged access count", color=MUTED)
    axes.set_ylabel("rows", color=MUTED)
    save_figure(figure, path)
