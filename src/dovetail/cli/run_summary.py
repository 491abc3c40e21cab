"""What a run came to, as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dovetail.cli.tables import wide_console
from dovetail.runtime.folder import Summary
from dovetail.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from dovetail.runtime.finished.result import TrainingResult
    from dovetail.runtime.folder import LinkSummary, StageSummary, TableSummary, WorkerSummary
    from dovetail.spec.run import Run


def print_summary(run: Run, result: TrainingResult) -> None:
    """Print figures, workers, servers, and the commands that go on from here."""
    console = wide_console()
    console.print(_worker_table(result))
    summary = Summary.read(result.folder)
    if summary.stages:
        console.print(_stage_table(summary.stages))
    console.print(_row_table(summary.tables) if summary.tables else _server_table(result))
    if summary.links:
        console.print(_link_table(summary.links))
    here = int(sum(figures["samples"] for figures in result.workers.values()))
    total = f"{here:,} samples in {format_duration(result.seconds)}"
    lines = [
        ("speed", f"{format_count(result.samples_per_s)} samples/s while it trained; {total} with starting and saving"),
        ("loss", _quality(result)),
        ("kept", f"{result.checkpoint}, after {result.samples:,} samples"),
    ]
    if looked_up := sum(worker.looked_up_rows for worker in summary.workers.values()):
        lines.append(("cache", _kept(summary.workers.values(), looked_up)))
    if run.sites:
        from dovetail.runtime.sites.figures import in_words

        lines.append(("sites", in_words(result.folder)))
    if result.is_complete:
        more = f"dovetail train --resume {result.folder} --epochs {run.training.epochs + 1}"
        lines += [("test it", f"dovetail evaluate {result.folder}"), ("go on", more)]
        lines += [("take it", f"dovetail export {result.folder} --out {result.folder}/export")]
    else:
        lines += [("go on", f"dovetail train --resume {result.folder}")]
    for name, words in lines:
        console.print(f"{name:<7} {words}", highlight=False, soft_wrap=True)


def _kept(workers: Iterable[WorkerSummary], looked_up: int) -> str:
    """Return what workers' caches of servers' rows brought, in words."""
    each = list(workers)
    kept, kept_bytes = sum(worker.kept_rows for worker in each), sum(worker.kept_bytes for worker in each)
    came, saved = format_count(looked_up - kept), format_bytes(kept_bytes)
    return f"{kept / looked_up:.1%} of the rows were with the workers; {came} travelled, and {saved} did not"


def _quality(result: TrainingResult) -> str:
    """Return loss and AUC in words."""
    if math.isnan(result.loss):
        return "not known: no step was taken"
    auc = "" if math.isnan(result.auc) else f", AUC {result.auc:.4f}"
    others = "".join(f", {name} {value:.4f}" for name, value in result.metrics.items() if not math.isnan(value))
    return f"{result.loss:.4f}{auc}{others}, of the last seconds' samples before they were trained on"


def _worker_table(result: TrainingResult) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("worker", "samples", "share", "samples/s", "busy", "idle"):
        table.add_column(heading, justify="left" if heading == "worker" else "right", no_wrap=True)
    for name, figures in result.workers.items():
        table.add_row(
            name,
            f"{figures['samples']:,}",
            f"{figures['share']:.1%}",
            format_count(figures["samples"] / max(1e-9, figures["busy_s"])),
            format_duration(figures["busy_s"]),
            f"{figures['idle']:.1%}",
        )
    return table


def _stage_table(stages: Sequence[StageSummary]) -> Table:
    """Return what each stage did; the workers above are those of the first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("stage", "layers", "workers", "samples", "computing"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, stage in enumerate(stages):
        layers = f"{stage.first_layer} to {stage.last_layer}"
        table.add_row(str(number), layers, str(stage.workers), f"{stage.samples:,}", format_duration(stage.busy_s))
    return table


def _link_table(links: Mapping[str, LinkSummary]) -> Table:
    """Return the links whose widths were chosen, with what that was measured to bring."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("link", "bits", "changes", "transfers"):
        table.add_column(heading, justify="left" if heading == "link" else "right", no_wrap=True)
    for name, link in sorted(links.items()):
        table.add_row(name, str(link.bits), str(link.changes), f"{link.gain:.1f}x as fast")
    return table


def _row_table(tables: Sequence[TableSummary]) -> Table:
    """Return where the rows of tables on a device are."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("table", "on the device", "in memory", "on disk", "found there", "came up", "went down"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, rows in enumerate(tables):
        places = [f"{count:,}" for count in (rows.device_rows, rows.host_rows, rows.disk_rows)]
        table.add_row(str(number), *places, f"{rows.hit_ratio:.1%}", f"{rows.lifted:,}", f"{rows.lowered:,}")
    return table


def _server_table(result: TrainingResult) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("server", "rows", "updates", "busy", "log", "of the time"):
        table.add_column(heading, justify="left" if heading == "server" else "right", no_wrap=True)
    for name, figures in result.servers.items():
        table.add_row(
            name,
            f"{figures['rows']:,}",
            format_count(figures["pushed_keys"]),
            format_duration(figures["busy_s"]),
            f"{figures['log_bytes'] / 1e6:,.1f} MB",
            f"{figures['log_s'] / max(1e-9, result.seconds):.1%}",
        )
    if len(result.servers) > 1:
        table.caption = f"the fullest has {result.imbalance:.2f} times the mean"
        table.caption_justify = "left"
    return table
