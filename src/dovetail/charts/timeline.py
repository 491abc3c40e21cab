"""A run as its workers lived it: one row a worker, what it did when.

Above, the whole run in narrow bins; below, a window in which single tasks can be seen. Computing, waiting and reducing
are the worker's own time and stand in the row; fetching and sending go on beside them, in the thin lane underneath.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.page import FactTable
from dovetail.charts.style import FAINT, INK, MUTED, shorten_to, show_scales, text_width_inches, write
from dovetail.errors import DovetailError
from dovetail.runtime.folder import TIMELINE, WIDTHS
from dovetail.units import format_duration

KINDS = {
    "compute": "#0072b2",
    "reduce": "#009e73",
    "wait": "#d9a08a",
    "read": "#cc79a7",
    "fetch": "#56b4e9",
    "send": "#e69f00",
}
"""What a worker can be at, and its colour."""
OWN_TIME = ("compute", "reduce", "wait")
BESIDE = ("read", "fetch", "send")
NUM_BINS = 240
STEPS_SHOWN = 8
WIDTH = 12.0
_LEFT, _RIGHT = 1.5, 0.4
_ROW, _OVERVIEW_ROW = 0.62, 0.4
_LANE = (0.12, 0.3)
"""Where in a row of height 1 the lane of what goes on beside lies."""
_OWN = (0.36, 0.92)


class Width(NamedTuple):
    """A decision: from then on a link of a worker has so many bits; with as many as before, what that brought."""

    time_s: float
    worker: str
    link: str
    before: int
    bits: int
    gain: float


def read_widths(folder: Path, *, since_s: float = 0.0) -> list[Width]:
    """Return the decisions of a run, in their order; none where no width was ever chosen."""
    path = folder / WIDTHS
    decoder = msgspec.json.Decoder(tuple[float, str, str, int, int, float])
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            found.append(Width(*decoder.decode(line)))
        except msgspec.MsgspecError:
            continue
    return [width for width in found if width.time_s >= since_s]


def mark_widths(axes: Axes, widths: Sequence[Width], workers: Sequence[str], zero_s: float) -> None:
    """Draw a tick for every change, in the row of its worker; axes count seconds from `zero_s`."""
    for width in widths:
        if width.worker in workers and width.before != width.bits:
            row, at_s = len(workers) - 1 - workers.index(width.worker), width.time_s - zero_s
            axes.plot([at_s, at_s], [row + 0.05, row + 0.95], color=INK, linewidth=0.9, gid="widths")
            is_there = width.link.startswith("to ")
            place = row + (0.9 if is_there else 0.4)
            write(axes, at_s, place, f" {width.bits} bits {width.link}", colour=INK, va="top", size=7.5)


class TimelineSpan(NamedTuple):
    """What one worker did for a while; seconds are of the clock that all workers share."""

    worker: str
    kind: str
    start_s: float
    end_s: float
    step: int


def read_spans(folder: Path, *, since_s: float = 0.0) -> list[TimelineSpan]:
    """Return the spans that a run kept, in order of their starts; a line that was not finished is left out.

    A run that was resumed has spans of all its times; `since_s`, in seconds of the epoch, leaves out earlier ones.
    """
    path = folder / TIMELINE
    if not path.is_file():
        raise DovetailError(
            f"{folder} has no {TIMELINE}", hint="train with --timeline FILE.html, which keeps what every worker does"
        )
    decoder = msgspec.json.Decoder(tuple[str, str, float, float, int])
    spans = []
    for line in path.read_bytes().splitlines():
        try:
            span = TimelineSpan(*decoder.decode(line))
        except msgspec.MsgspecError:
            continue
        if span.start_s >= since_s:
            spans.append(span)
    if not spans:
        raise DovetailError(f"{path} holds no spans", hint="let the run train for a few steps")
    return sorted(spans, key=lambda span: span.start_s)


def draw_timeline(
    spans: Sequence[TimelineSpan], *, last_s: float | None = None, widths: Sequence[Width] = ()
) -> Figure:
    """Return the timeline of a run; the window below shows its last `last_s` seconds (absent: its last steps).

    Above, `widths` that were chosen for links are marked.
    """
    workers = sorted({span.worker for span in spans})
    begin_s, end_s = _extent(spans)
    shown_s = min(last_s if last_s is not None else _last_steps_s(spans), end_s - begin_s)
    overview, detail = _OVERVIEW_ROW * len(workers), _ROW * len(workers)
    height = 1.5 + overview + 0.95 + detail + 0.75
    figure = new_figure(WIDTH, height)
    width = WIDTH - _LEFT - _RIGHT
    top = height - 1.5
    whole = axes_in_inches(figure, left=_LEFT, bottom=top - overview, width=width, height=overview)
    _draw_overview(whole, spans, workers, begin_s, end_s)
    mark_widths(whole, widths, workers, begin_s)
    window = axes_in_inches(figure, left=_LEFT, bottom=0.75, width=width, height=detail)
    _draw_window(window, spans, workers, begin_s, end_s - shown_s, end_s)
    _draw_key(axes_in_inches(figure, left=_LEFT, bottom=height - 1.32, width=width, height=0.25), spans, width)
    name = axes_in_inches(figure, left=_LEFT, bottom=0.75 + detail + 0.08, width=width, height=0.25)
    name.set_xlim(0, width)
    name.set_ylim(0, 0.25)
    write(name, 0, 0.12, f"the last {format_duration(shown_s)}, task by task", colour=INK, va="center", size=10)
    lived_s = _lived_s(spans, workers)
    waited_s = _totals(spans, workers)[:, list(KINDS).index("wait")].sum()
    write_title(
        figure,
        f"{len(workers)} workers over {format_duration(end_s - begin_s)}",
        f"{waited_s / lived_s:.1%} of the workers' time was waiting; white is everything else",
        left=0.4,
    )
    return figure


def timeline_facts(spans: Sequence[TimelineSpan]) -> FactTable:
    """Return what each worker's time went into, one row a worker."""
    workers = sorted({span.worker for span in spans})
    kinds = [kind for kind in KINDS if any(span.kind == kind for span in spans)]
    totals = _totals(spans, workers)
    return FactTable(
        caption="Seconds of each worker; fetching and sending go on beside the rest",
        columns=("worker", *kinds),
        rows=tuple(
            (worker, *(f"{totals[row, list(KINDS).index(kind)]:.2f} s" for kind in kinds))
            for row, worker in enumerate(workers)
        ),
    )


def _extent(spans: Sequence[TimelineSpan]) -> tuple[float, float]:
    """Return when the first span began and the last ended; at least a millisecond apart."""
    begin_s = min(span.start_s for span in spans)
    end_s = max(span.end_s for span in spans)
    return begin_s, max(end_s, begin_s + 1e-3)


def _lived_s(spans: Sequence[TimelineSpan], workers: Sequence[str]) -> float:
    """Return the seconds of all workers together, each from its first span to its last."""
    extents = [_extent([span for span in spans if span.worker == worker]) for worker in workers]
    return sum(last_s - first_s for first_s, last_s in extents)


def _last_steps_s(spans: Sequence[TimelineSpan]) -> float:
    """Return how long the last steps took: enough of them to see how they follow each other."""
    end_s = max(span.end_s for span in spans)
    starts: dict[int, float] = {}
    for span in spans:
        if span.kind == "compute":
            starts[span.step] = min(starts.get(span.step, end_s), span.start_s)
    latest = sorted(starts.values())[-STEPS_SHOWN:]
    return max(end_s - latest[0], 1e-3) if latest else 2.0


def _totals(spans: Sequence[TimelineSpan], workers: Sequence[str]) -> NDArray[np.float64]:
    """Return seconds by worker and kind."""
    totals = np.zeros((len(workers), len(KINDS)))
    columns = {kind: column for column, kind in enumerate(KINDS)}
    rows = {worker: row for row, worker in enumerate(workers)}
    for span in spans:
        if span.kind in columns:
            totals[rows[span.worker], columns[span.kind]] += span.end_s - span.start_s
    return totals


def binned(spans: Sequence[TimelineSpan], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the part of each bin that spans cover: those of one worker and one kind, which do not overlap."""
    if not spans:
        return np.zeros(len(edges) - 1)
    starts = np.array([span.start_s for span in spans])
    ends = np.array([span.end_s for span in spans])
    # Seconds covered before each edge: those of spans that are over, and the begun part of the others.
    covered = np.array([np.clip(np.minimum(ends, edge) - starts, 0.0, None).sum() for edge in edges])
    parts: NDArray[np.float64] = np.clip(np.diff(covered) / np.diff(edges), 0.0, 1.0)
    return parts


def _draw_overview(
    axes: Axes, spans: Sequence[TimelineSpan], workers: Sequence[str], begin_s: float, end_s: float
) -> None:
    """Draw the part of each bin that a worker spent on each kind, stacked, one row a worker."""
    _lay_out(axes, workers, 0.0, end_s - begin_s)
    edges = np.linspace(begin_s, end_s, NUM_BINS + 1)
    for row, worker in enumerate(workers):
        base = np.full(NUM_BINS, len(workers) - 1 - row + 0.1)
        for kind in OWN_TIME:
            mine = [span for span in spans if span.worker == worker and span.kind == kind]
            if not mine:
                continue
            parts = 0.8 * binned(mine, edges)
            parts = np.minimum(parts, len(workers) - row - 0.1 - base)
            axes.bar(
                edges[:-1] - begin_s,
                parts,
                width=np.diff(edges),
                bottom=base,
                align="edge",
                color=KINDS[kind],
                linewidth=0,
                gid=f"{kind}-of-{worker}",
            )
            base = base + parts


def _draw_window(
    axes: Axes, spans: Sequence[TimelineSpan], workers: Sequence[str], zero_s: float, first_s: float, last_s: float
) -> None:
    """Draw every span between two times."""
    _lay_out(axes, workers, first_s - zero_s, last_s - zero_s)
    seen = [span for span in spans if span.end_s > first_s and span.start_s < last_s and span.kind in KINDS]
    for kind, colour in KINDS.items():
        low, high = _LANE if kind in BESIDE else _OWN
        boxes = []
        for span in seen:
            if span.kind == kind:
                row = len(workers) - 1 - workers.index(span.worker)
                left, right = max(span.start_s, first_s) - zero_s, min(span.end_s, last_s) - zero_s
                boxes.append([(left, row + low), (right, row + low), (right, row + high), (left, row + high)])
        if boxes:
            axes.add_collection(PolyCollection(boxes, facecolors=colour, edgecolors="none", gid=f"spans-{kind}"))


def _lay_out(axes: Axes, workers: Sequence[str], first_s: float, last_s: float) -> None:
    """Give axes a row for each worker and a scale of seconds."""
    show_scales(axes, grid="x")
    axes.set_xlim(first_s, last_s)
    axes.set_ylim(0, len(workers))
    axes.set_yticks([row + 0.5 for row in range(len(workers))])
    axes.set_yticklabels([shorten_to(worker, _LEFT - 0.25, 9.5) for worker in reversed(workers)], color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g} s"))
    for row in range(1, len(workers)):
        axes.axhline(row, color=FAINT, linewidth=0.6)


def _draw_key(axes: Axes, spans: Sequence[TimelineSpan], width: float) -> None:
    """Write what the colours mean."""
    axes.set_xlim(0, width)
    axes.set_ylim(0, 0.25)
    x = 0.0
    for kind, colour in KINDS.items():
        if any(span.kind == kind for span in spans):
            axes.add_patch(Rectangle((x, 0.055), 0.22, 0.14, facecolor=colour))
            write(axes, x + 0.3, 0.125, kind, colour=MUTED, va="center")
            x += 0.3 + text_width_inches(kind, 9.5) + 0.35
