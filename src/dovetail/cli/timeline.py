"""`dovetail timeline`: what every worker of a run did when, drawn from the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import errors_shown, say, write_file
from dovetail.errors import DovetailError

TRACE = ".json"


def timeline(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was trained with --timeline.")],
    out: Annotated[
        Path, typer.Option(help="The picture: FILE.html, FILE.svg or FILE.png; FILE.json for Perfetto and Chrome.")
    ],
    last: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that the window shows; absent: the last steps.")
    ] = None,
) -> None:
    """Draw what every worker did when: computing, fetching, sending, waiting."""
    with errors_shown():
        draw(run, out, last_s=last)


def draw(folder: Path, out: Path, *, last_s: float | None = None, since_s: float = 0.0) -> None:
    """Draw a run's timeline into a file, from a time on."""
    from dovetail.charts.chrome import run_trace
    from dovetail.charts.figure import save_figure
    from dovetail.charts.timeline import draw_timeline, read_spans, read_widths, timeline_facts

    check_timeline_path(out)
    spans, widths = read_spans(folder, since_s=since_s), read_widths(folder, since_s=since_s)
    if out.suffix == TRACE:
        end_s = max(span.end_s for span in spans)
        shown = [span for span in spans if last_s is None or span.end_s > end_s - last_s]
        write_file(out, run_trace(shown, name=_run_of(folder), widths=widths))
        say(f"written: {out}; open it at https://ui.perfetto.dev or chrome://tracing")
        return
    save_figure(draw_timeline(spans, last_s=last_s, widths=widths), out, table=timeline_facts(spans))
    say(f"drawn: {out}")


def _run_of(folder: Path) -> str:
    """Return what the run calls itself in logs and figures, or its folder where it does not say."""
    from dovetail.runtime.blueprint import Blueprint

    try:
        return Blueprint.read(folder).id or str(folder)
    except DovetailError:
        return str(folder)


def check_timeline_path(out: Path) -> None:
    """Refuse a file that no timeline can be written to."""
    from dovetail.charts.figure import check_chart_path

    if out.suffix != TRACE:
        check_chart_path(out)
