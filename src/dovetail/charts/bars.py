"""The times of a plan's stages as bars, with a key above and what each stage runs on below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dovetail.charts.figure import axes_in_inches
from dovetail.charts.labels import text_width_inches, write
from dovetail.charts.palette import ALARM, INK, MUTED, PAPER, QUIET
from dovetail.charts.scales import show_scales
from dovetail.charts.stage import BADGE_INCHES, StageFacts, draw_badge
from dovetail.spec import Training
from dovetail.units import format_count, format_duration

_FEET_HEIGHT, _TIMES_HEIGHT, _KEY_GAP, _KEY_HEIGHT = 0.95, 2.7, 0.12, 0.25
BARS_HEIGHT = _FEET_HEIGHT + _TIMES_HEIGHT + _KEY_GAP + _KEY_HEIGHT
"""Inches, the key above and the words below the bars included."""

_FAR_BELOW = 2.5
"""Where the floor allows over this many times the slowest stage, its line would flatten the bars: a note stands in."""

_CUT_LOOK: dict[str, Any] = {"facecolor": "none", "hatch": "//////", "linewidth": 0.0}
_NOTE: dict[str, Any] = {
    "textcoords": "offset points",
    "bbox": {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1},
    "zorder": 5,
}


def draw_bars(
    figure: Figure, facts: Sequence[StageFacts], training: Training, *, left: float, bottom: float, width: float
) -> None:
    """Draw a bar for each stage, the key above them, and below each what it runs on."""
    times_bottom = bottom + _FEET_HEIGHT
    key_bottom = times_bottom + _TIMES_HEIGHT + _KEY_GAP
    _write_key(axes_in_inches(figure, left=left, bottom=key_bottom, width=width, height=_KEY_HEIGHT), facts, width)
    times = axes_in_inches(figure, left=left, bottom=times_bottom, width=width, height=_TIMES_HEIGHT)
    _draw_times(times, facts, training, width)
    _draw_feet(axes_in_inches(figure, left=left, bottom=bottom, width=width, height=_FEET_HEIGHT), facts, width)


def _write_key(axes: Axes, facts: Sequence[StageFacts], width: float) -> None:
    """Write what the bars are, and what the parts of a bar mean."""
    axes.set_xlim(0, width)
    axes.set_ylim(0, _KEY_HEIGHT)
    middle = _KEY_HEIGHT / 2
    write(axes, 0, middle, "Time of each stage for one batch", size=11, va="center", fontweight="bold")
    parts: dict[str, dict[str, Any]] = {"compute": {"facecolor": MUTED}}
    parts["communication"] = {"facecolor": MUTED, "alpha": 0.5}
    if any(fact.times.cut_s > 0 for fact in facts):
        parts["cuts between stages"] = _CUT_LOOK | {"edgecolor": MUTED}
    x = width
    for name, look in reversed(parts.items()):
        write(axes, x, middle, name, colour=MUTED, ha="right", va="center")
        x -= text_width_inches(name, 9.5) + 0.3
        axes.add_patch(Rectangle((x, 0.055), 0.22, 0.14, **look))
        x -= 0.2


def _draw_times(axes: Axes, facts: Sequence[StageFacts], training: Training, width: float) -> None:
    """Draw what each stage takes, on a scale that leaves room above, with the bottleneck and the floor."""
    slowest = max(fact.times.seconds for fact in facts)
    floor = training.min_samples_per_s
    allowed = training.batch / floor if floor > 0 else 0.0
    line_shows = 0 < allowed <= _FAR_BELOW * slowest
    top = max(slowest, allowed if line_shows else 0.0) or 1.0
    show_scales(axes, grid="y")
    axes.set_xlim(-0.5, len(facts) - 0.5)
    axes.set_ylim(0, 1.24 * top)
    axes.set_xticks([])
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    scale, unit = next(((scale, unit) for scale, unit in ((1.0, "s"), (1e-3, "ms")) if top >= scale), (1e-6, "us"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / scale:g} {unit}" if seconds else "0"))
    bar_width = min(0.74, 1.1 * len(facts) / width)
    for place, fact in enumerate(facts):
        _draw_bar(axes, place, fact, bar_width)
    worst = next(place for place, fact in enumerate(facts) if fact.is_bottleneck)
    _mark_bottleneck(axes, worst, facts[worst].times.seconds, bar_width, clear_of=allowed)
    if floor > 0:
        _draw_floor(axes, allowed, floor, line_shows=line_shows, on_the_right=worst < (len(facts) - 1) / 2)


def _draw_bar(axes: Axes, place: int, fact: StageFacts, width: float) -> None:
    """Draw what one stage takes: compute on the left of its bar, communication with its cuts on the right.

    The pale bar behind the two is as high as the higher one: the time of the stage.
    """
    times, half, fill = fact.times, width / 2, {"facecolor": fact.colour}
    left = place - half
    ground = {"facecolor": PAPER, "edgecolor": QUIET, "linewidth": 0.5}
    parts: tuple[tuple[str, float, float, float, float, dict[str, Any]], ...] = (
        ("ground", left, 0.0, width, times.seconds, ground),
        ("stage", left, 0.0, width, times.seconds, fill | {"alpha": 0.16}),
        ("compute", left, 0.0, half, times.compute_s, fill),
        ("communication", place, 0.0, half, times.comm_s, fill | {"alpha": 0.5}),
        ("cuts", place, times.comm_s, half, times.cut_s, _CUT_LOOK | {"edgecolor": fact.colour}),
    )
    for name, x, y, part_width, height, look in parts:
        axes.add_patch(Rectangle((x, y), part_width, height, gid=f"{name}-{fact.number}", **look))


def _mark_bottleneck(axes: Axes, place: int, seconds: float, bar_width: float, *, clear_of: float) -> None:
    """Outline the slowest stage and name it, above the line `clear_of` where the two would meet."""
    (left, right), top = axes.get_xlim(), axes.get_ylim()[1]
    looks: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.4 if right < 60 else 0.6}
    axes.add_patch(Rectangle((place - bar_width / 2, 0), bar_width, seconds, gid="bottleneck", zorder=4, **looks))
    base = clear_of if seconds <= clear_of < seconds + 0.14 * top else seconds
    across = (place - left) / (right - left)
    side = "left" if across < 0.06 else "right" if across > 0.94 else "center"
    words: dict[str, Any] = {"ha": side, "va": "bottom", "fontsize": 10, "fontweight": "bold", "color": INK}
    axes.annotate(f"bottleneck {format_duration(seconds)}", (place, base), (0, 5), **words, **_NOTE)


def _draw_floor(axes: Axes, allowed: float, floor: float, *, line_shows: bool, on_the_right: bool) -> None:
    """Draw the time that the throughput floor allows, with its label away from the bottleneck's."""
    if line_shows:
        axes.axhline(allowed, color=ALARM, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3, gid="floor")
    axes.annotate(
        f"floor of {format_count(floor)} samples/s: at most {format_duration(allowed)}"
        + ("" if line_shows else ", far above this scale"),
        (axes.get_xlim()[on_the_right], allowed if line_shows else axes.get_ylim()[1]),
        (-2 if on_the_right else 2, 4 if line_shows else -2),
        ha="right" if on_the_right else "left",
        va="bottom" if line_shows else "top",
        fontsize=9,
        color=ALARM,
        **_NOTE,
    )


def _draw_feet(axes: Axes, facts: Sequence[StageFacts], width: float) -> None:
    """Write below each bar its badge, what it takes and what it runs on, as far as there is room."""
    axes.set_xlim(-0.5, len(facts) - 0.5)
    axes.set_ylim(-_FEET_HEIGHT, 0)
    slot = width / len(facts)
    stride = math.ceil((BADGE_INCHES + 0.03) / slot)
    times, labels = [format_duration(fact.times.seconds) for fact in facts], [fact.label for fact in facts]
    times_fit, labels_fit = (max(text_width_inches(cell, 9) for cell in row) + 0.1 <= slot for row in (times, labels))
    for place, fact in enumerate(facts):
        if place % stride == 0:
            draw_badge(axes, place, -0.2, fact)
        if times_fit or stride == 1:
            weight, angle = "bold" if fact.is_bottleneck else "normal", 0 if times_fit else 90
            write(axes, place, -0.36, times[place], size=9, ha="center", va="top", fontweight=weight, rotation=angle)
        if times_fit and labels_fit:
            write(axes, place, -0.56, labels[place], size=9, colour=MUTED, ha="center", va="top")
