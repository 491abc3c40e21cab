"""How charts look: colours, words that make room for each other, and scales."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter, LogLocator

from dovetail.units import format_usd

PAPER = "#fdfdfc"
INK = "#1b1f26"
MUTED = "#5f6773"
QUIET = "#a9b1bc"
FAINT = "#d5d9df"
ACCENT = "#0b6fb5"
ALARM = "#b3261e"
"""The colours of everything that is no type."""

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


def type_colour(position: int) -> str:
    """Return the colour of the type that stands at `position` in its problem; the first 64 differ."""
    return TYPE_COLOURS[position % len(TYPE_COLOURS)]


def ink_on(colour: str) -> str:
    """Return black or white, whichever stands out more on `colour` (the contrast of WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#101010" if luminance > 0.179 else "#ffffff"


def write(axes: Axes, x: float, y: float, words: str, *, size: float = 9.5, colour: str = INK, **looks: Any) -> Text:
    """Write words at a place in the axes as they are: a dollar sign is a dollar sign."""
    return axes.text(x, y, words, fontsize=size, color=colour, parse_math=False, **looks)


def shorten(text: str, max_characters: int) -> str:
    """Return text on one line; an ellipsis replaces the middle of what is longer, as names often differ at the end."""
    line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    if len(line) <= max_characters:
        return line
    tail = (max_characters - 1) // 2
    return line[: max_characters - 1 - tail] + "…" + line[len(line) - tail :]


def shorten_to(text: str, width_inches: float, size: float) -> str:
    """Return text shortened until it is no wider than `width_inches` at a font size in points."""
    longest = len(text)
    while longest > 1 and text_width_inches(shorten(text, longest), size) > width_inches:
        longest -= 1
    return shorten(text, longest)


def text_width_inches(text: str, size: float, weight: str = "normal") -> float:
    """Return how wide text of a font size in points is."""
    with any_script():
        font = FontProperties(size=size, weight=weight)
        return float(TextToPath().get_text_width_height_descent(text, font, ismath=False)[0]) / 72


def spread_apart(wanted: Sequence[float], widths: Sequence[float], *, low: float, high: float) -> list[float]:
    """Return the centres nearest to those `wanted` (in rising order) at which labels of these widths do not overlap.

    The sum of squared moves is least: with the widths taken off, centres must only not fall, which is isotonic
    regression (pool adjacent violators); holding its answer between `low` and `high` keeps it best. Where the labels
    are wider than the room together, they start at `low` and run over `high`.
    """
    if not wanted:
        return []
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
    lowest, highest = low + widths[0] / 2, high - widths[-1] / 2 - offsets[-1]
    return [max(min(place, highest), lowest) + offset for place, offset in zip(level, offsets, strict=True)]


@contextmanager
def any_script() -> Iterator[None]:
    """Keep quiet about letters the font lacks: they show as boxes in PNG and as themselves in SVG and HTML."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


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
