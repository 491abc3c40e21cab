"""What all charts share: one look, one palette, and the files a figure can be saved to."""

from __future__ import annotations

import html
import io
import itertools
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter, LogLocator

from dovetail.errors import DovetailError
from dovetail.units import format_usd

PAPER = "#fdfdfc"
INK = "#1b1f26"
MUTED = "#5f6773"
QUIET = "#a9b1bc"
FAINT = "#d5d9df"
ACCENT = "#0b6fb5"
ALARM = "#b3261e"
"""The colours of everything that is no type."""

_PAGE_COLOURS = {
    "paper": (PAPER, "#15181d"),
    "ink": (INK, "#eceff4"),
    "muted": (MUTED, "#a0a8b5"),
    "quiet": (QUIET, "#687180"),
    "faint": (FAINT, "#3b424d"),
    "accent": (ACCENT, "#63b3ee"),
    "alarm": (ALARM, "#ff8a80"),
}
"""Their names on an HTML page, with what each is by day and in the dark."""

_COLOUR_LIST = (
    "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0e442 #4a2a7f "
    "#710000 #8ed9aa #7b4c5e #bdd9ff #7184ec #974200 #68004c #55c671 "
    "#2f4caa #97bdc6 #a1428e #84684c #97ec84 #554239 #683971 #b3e3d9 "
    "#aa7bc6 #718e42 #2f8471 #5ebd97 #d9c64c #4c68d0 #68aa5e #8ec6ff "
    "#aa6897 #68a1ff #8e1c00 #685539 #c68e00 #8ea1c6 #1c6884 #422f5e "
    "#55428e #bd4c1c #8e71d0 #68f6b3 #712f55 #7bd984 #97bd4c #4c2f2f "
    "#bd8484 #84d0e3 #392f97 #8e8ee3 #f697b3 #e38ee3 #974caa #ffd068 "
    "#ff8497 #4c55bd #c64c5e #5e421c #26a1aa #aad0c6 #d95e42 #8eaa7b"
)
TYPE_COLOURS = tuple(_COLOUR_LIST.split())
"""The colours of types. The first seven are Okabe and Ito's, the eighth a violet in place of their black. Each further
one, among colours neither pale, dark nor glaring, is the farthest in OKLab from all before it, as people with full
colour vision, without green cones (deuteranopia) and without red cones (protanopia) see them."""

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


def write(axes: Axes, x: float, y: float, words: str, *, size: float = 9.5, colour: str = INK, **looks: Any) -> Text:
    """Write words at a place in the axes as they are: a dollar sign is a dollar sign."""
    return axes.text(x, y, words, fontsize=size, color=colour, parse_math=False, **looks)


def type_colour(position: int) -> str:
    """Return the colour of the type that stands at `position` in its problem; the first 64 differ."""
    return TYPE_COLOURS[position % len(TYPE_COLOURS)]


def ink_on(colour: str) -> str:
    """Return black or white, whichever stands out more on `colour` (the contrast of WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#101010" if luminance > 0.179 else "#ffffff"


def shorten(text: str, max_characters: int) -> str:
    """Return text on one line, cut with an ellipsis where it is longer than `max_characters`."""
    line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def shorten_to(text: str, width_inches: float, size: float) -> str:
    """Return text on one line, cut with an ellipsis where it is wider than `width_inches` at a font size in points."""
    longest = len(text)
    while longest > 1 and text_width_inches(shorten(text, longest), size) > width_inches:
        longest -= 1
    return shorten(text, longest)


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
    for before, after in itertools.pairwise(widths):
        offsets.append(offsets[-1] + (before + after) / 2)
    pools: list[tuple[float, int]] = []
    for target, offset in zip(wanted, offsets, strict=True):
        total, count = target - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            earlier_total, earlier_count = pools.pop()
            total, count = total + earlier_total, count + earlier_count
        pools.append((total, count))
    level = [total / count for total, count in pools for _ in range(count)]
    if not level:
        return []
    lowest, highest = low + widths[0] / 2, high - widths[-1] / 2 - offsets[-1]
    return [max(min(place, highest), lowest) + offset for place, offset in zip(level, offsets, strict=True)]


def spans_over(values: Sequence[float], times: float) -> bool:
    """Return whether the largest value is more than `times` the smallest, so that a log scale is called for."""
    return min(values) > 0 and max(values) / min(values) > times


def log_ticks(values: Sequence[float]) -> LogLocator:
    """Return ticks for a log scale: powers of ten where the values span many, more between them where they do not."""
    if not spans_over(values, 4):
        return LogLocator(subs=[step / 2 for step in range(2, 20)])
    return LogLocator(subs=[1.0] if spans_over(values, 300) else [1.0, 2.0, 5.0])


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
    for name, (by_day, _) in _PAGE_COLOURS.items():
        picture = picture.replace(by_day, f"var(--{name})")
    return _PAGE.format(
        title=html.escape(title),
        light=" ".join(f"--{name}: {by_day};" for name, (by_day, _) in _PAGE_COLOURS.items()),
        dark=" ".join(f"--{name}: {in_the_dark};" for name, (_, in_the_dark) in _PAGE_COLOURS.items()),
        picture=picture.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1),
        table=_table(table) if table else "",
    )


def _table(table: FactTable) -> str:
    """Return facts as an HTML table."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table>\n<caption>{html.escape(table.caption)}</caption>\n'
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
th, td {{ text-align: left; padding: .3rem 1.4rem .3rem 0; border-bottom: 1px solid var(--faint);
  white-space: nowrap; }}
th {{ color: var(--muted); font-weight: 600; }}
</style>
</head>
<body>
<div class="wide">
{picture}</div>
{table}</body>
</html>
"""
