"""What all charts share: one look, one palette, and the files a figure can be saved to."""

from __future__ import annotations

import html
import io
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter

from dovetail.errors import DovetailError
from dovetail.units import format_usd

PAPER = "#fdfdfc"
INK = "#1b1f26"
MUTED = "#5f6773"
FAINT = "#d5d9df"
ACCENT = "#0b6fb5"
ALARM = "#b3261e"
"""The colours of a page on which no type is shown; a saved HTML page swaps them for light ones in the dark."""

_IN_THE_DARK = {PAPER: "#15181d", INK: "#eceff4", MUTED: "#a0a8b5", FAINT: "#3b424d", ACCENT: "#63b3ee", ALARM: "#ff8a80"}
_HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#6f4fae")
"""Okabe and Ito's colours, which people with any colour vision tell apart; violet stands in for their black."""

_TOWARDS_WHITE = (0.0, 0.5, -0.42, 0.25, -0.22, 0.68, -0.6, 0.38)
"""How far each further turn through the hues goes towards white (above zero) or black (below)."""

ENDINGS = (".png", ".svg", ".html")
_DOTS_PER_INCH = 160
_ONE_AT_A_TIME = threading.Lock()
"""Matplotlib reads how to write SVG from settings that all threads share, so one figure is written at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTable:
    """The facts of a chart as text, for readers who cannot see it or want the numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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


def show_scales(axes: Axes, *, grid: str) -> None:
    """Give axes quiet tick labels, a base line and grid lines along `grid`: "x", "y" or "both"."""
    axes.set_axis_on()
    axes.tick_params(which="both", colors=MUTED, labelsize=9, length=0)
    axes.set_axisbelow(True)
    axes.grid(visible=True, which="major", axis=grid, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)


def usd_ticks() -> FuncFormatter:
    """Return a formatter for an axis of money, without cents that are all zero."""
    return FuncFormatter(lambda amount, _: format_usd(amount).removesuffix(".00") if amount else "$0")


def write_title(figure: Figure, title: str, subtitle: str, *, left: float) -> None:
    """Write a figure's title and the line beneath it, `left` inches from the edge."""
    width, height = figure.get_size_inches()
    words = figure.suptitle(
        title, x=left / width, y=1 - 0.26 / height, ha="left", va="top", fontsize=14, fontweight="bold", color=INK
    )
    words.set_parse_math(False)
    figure.text(
        left / width, 1 - 0.6 / height, subtitle, ha="left", va="top", fontsize=10, color=MUTED, parse_math=False
    )


def type_colour(position: int) -> str:
    """Return the colour of the type that stands at `position` in its problem; the first 64 all differ."""
    turn, hue = divmod(position, len(_HUES))
    step = _TOWARDS_WHITE[turn % len(_TOWARDS_WHITE)]
    end = 1.0 if step > 0 else 0.0
    mixed = [channel + (end - channel) * abs(step) for channel in to_rgb(_HUES[hue])]
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in mixed)


def ink_on(colour: str) -> str:
    """Return black or white, whichever stands out more on `colour` (the contrast of WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#101010" if luminance > 0.179 else "#ffffff"


def shorten(text: str, max_characters: int) -> str:
    """Return text on one line, cut with an ellipsis where it is longer than `max_characters`."""
    line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def text_width_inches(text: str, size: float, weight: str = "normal") -> float:
    """Return how wide text of a font size in points is."""
    with _any_script():
        font = FontProperties(size=size, weight=weight)
        return float(TextToPath().get_text_width_height_descent(text, font, ismath=False)[0]) / 72


def spread_apart(wanted: Sequence[float], widths: Sequence[float], *, low: float, high: float) -> list[float]:
    """Return the centres nearest to those `wanted` (in rising order) at which labels of these widths do not overlap.

    The sum of squared moves is least: with the widths taken off, centres must only not fall, which is isotonic
    regression (pool adjacent violators); holding its answer between `low` and `high` keeps it best. Where the labels
    are wider than the room together, they start at `low` and run over `high`.
    """
    offsets = [0.0]
    for before, after in zip(widths, widths[1:], strict=False):
        offsets.append(offsets[-1] + (before + after) / 2)
    pools: list[tuple[float, int]] = []
    for target, offset in zip(wanted, offsets, strict=False):
        total, count = target - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            earlier_total, earlier_count = pools.pop()
            total, count = total + earlier_total, count + earlier_count
        pools.append((total, count))
    level = [total / count for total, count in pools for _ in range(count)]
    if not level:
        return []
    lowest, highest = low + widths[0] / 2, high - widths[-1] / 2 - offsets[-1]
    return [max(min(place, highest), lowest) + offset for place, offset in zip(level, offsets, strict=False)]


def spans_over(values: Sequence[float], times: float) -> bool:
    """Return whether the largest value is more than `times` the smallest, so that a log scale is called for."""
    return min(values) > 0 and max(values) / min(values) > times


def finite_and_positive(value: float) -> bool:
    """Return whether a value has a place on a log scale."""
    return 0 < value < math.inf


def check_chart_path(path: str | Path) -> str:
    """Return the ending of a chart's file, or raise DovetailError where no chart can be written there."""
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in ENDINGS:
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
        content = _page(title, content.decode(), table).encode()
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
    with _ONE_AT_A_TIME, mpl.rc_context(settings), _any_script():  # type: ignore[arg-type]
        figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()


@contextmanager
def _any_script() -> Iterator[None]:
    """Keep quiet about letters the font lacks: they show as boxes in PNG and as themselves in SVG and HTML."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _page(title: str, svg: str, table: FactTable | None) -> str:
    """Return one HTML page that needs no other file: the picture inline and its facts beneath."""
    picture = svg[svg.index("<svg") :]
    for name, colour in zip(("paper", "ink", "muted", "faint", "accent", "alarm"), _IN_THE_DARK, strict=True):
        picture = picture.replace(colour, f"var(--{name})")
    return _PAGE.format(
        title=html.escape(title),
        light=_variables(list(_IN_THE_DARK)),
        dark=_variables(list(_IN_THE_DARK.values())),
        picture=picture.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1),
        table=_table(table) if table else "",
    )


def _variables(colours: Sequence[str]) -> str:
    """Return CSS variables for the colours of a page."""
    names = ("paper", "ink", "muted", "faint", "accent", "alarm")
    return " ".join(f"--{name}: {colour};" for name, colour in zip(names, colours, strict=True))


def _table(table: FactTable) -> str:
    """Return facts as an HTML table."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f"<div class=\"wide\"><table>\n<caption>{html.escape(table.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n"
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ {light} color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
body {{ margin: 0 auto; padding: 1.5rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }}
.wide {{ overflow-x: auto; }}
svg {{ display: block; width: 100%; min-width: 44rem; height: auto; }}
table {{ margin: 1.5rem 0; border-collapse: collapse; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; color: var(--muted); padding-bottom: .5rem; }}
th, td {{ text-align: left; padding: .3rem 1.4rem .3rem 0; border-bottom: 1px solid var(--faint); white-space: nowrap; }}
th {{ color: var(--muted); font-weight: 600; }}
</style>
</head>
<body>
<div class="wide">
{picture}</div>
{table}</body>
</html>
"""
