"""An empty figure, its title, and the files it can be saved to."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dovetail.charts.page import FactTable, html_page
from dovetail.charts.style import INK, MUTED, PAPER, any_script
from dovetail.errors import DovetailError

_ENDINGS = (".png", ".svg", ".html")
_DOTS_PER_INCH = 160
_ONE_AT_A_TIME = threading.Lock()
"""Matplotlib reads how to write SVG from settings that all threads share, so one figure is written at a time."""


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure that belongs to no window and no global list of figures."""
    figure = Figure(figsize=(width_inches, height_inches), dpi=_DOTS_PER_INCH, facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def axes_in_inches(figure: Figure, *, left: float, bottom: float, width: float, height: float) -> Axes:
    """Return axes of a size given in inches, without frame or ticks."""
    page_width, page_height = figure.get_size_inches()
    place = (left / page_width, bottom / page_height, width / page_width, height / page_height)
    axes = figure.add_axes(place, facecolor="none")
    axes.set_axis_off()
    return axes


def write_title(figure: Figure, title: str, subtitle: str, *, left: float) -> None:
    """Write a figure's title and the line beneath it, `left` inches from the edge."""
    width, height = figure.get_size_inches()
    looks: dict[str, Any] = {"x": left / width, "ha": "left", "va": "top", "parse_math": False}
    figure.suptitle(title, y=1 - 0.26 / height, fontsize=14, fontweight="bold", color=INK, **looks)
    figure.text(y=1 - 0.6 / height, s=subtitle, fontsize=10, color=MUTED, **looks)


def check_chart_path(path: str | Path) -> str:
    """Return the ending of a chart's file, or raise DovetailError where no chart can be written there."""
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in _ENDINGS:
        raise DovetailError(
            f"`{target}` ends in `{target.suffix}`, which no chart is written as"
            if target.suffix
            else f"`{target}` has no ending, so the kind of chart is not known",
            hint="end the name in .png, .svg or .html",
        )
    if not target.parent.is_dir():
        raise DovetailError(
            f"cannot write `{target}`: there is no folder `{target.parent}`",
            hint="make the folder first, or write the chart elsewhere",
        )
    return ending


def save_figure(figure: Figure, path: str | Path, *, table: FactTable | None = None) -> None:
    """Write a figure to a .png, .svg or .html file; `table` goes below the picture on the HTML page.

    The same figure gives the same bytes each time.
    """
    ending = check_chart_path(path)
    if ending == ".png":
        content = _render(figure, "png", {"Software": None})
    else:
        content = _render(figure, "svg", dict.fromkeys(("Creator", "Date", "Format", "Type")))
    if ending == ".html":
        title = figure.get_suptitle() or "Chart"
        content = html_page(title, content.decode(), table).encode()
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise DovetailError(
            f"cannot write `{path}`: {error.strerror or error}", hint="write the chart to a place you may write to"
        ) from error


def _render(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    """Return a figure as PNG or SVG, the same bytes each time."""
    buffer = io.BytesIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": "dovetail"}
    with _ONE_AT_A_TIME, mpl.rc_context(settings), any_script():  # type: ignore[arg-type]
        figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()
