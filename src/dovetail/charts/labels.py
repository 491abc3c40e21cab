"""Words on charts: how wide they are, how they are shortened, and how they make room for each other."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

from dovetail.charts.palette import INK


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
