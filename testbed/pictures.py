"""Pictures that benchmarks alone draw: the losses of runs that differ in one thing, and what a knob trades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.style import FAINT, INK, MUTED, show_scales, spread_apart, type_colour, write
from dovetail.errors import DovetailError

COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#7f7f7f")
_LABEL_INCHES = 0.24


def draw_convergence(losses: Mapping[str, Sequence[float]], title: str, *, window: int = 50) -> Figure:
    """Return the losses of runs as means over `window` steps; the first run is what the others are held against."""
    if not losses or any(len(each) < window for each in losses.values()):
        raise DovetailError(
            f"there are fewer than {window} losses to draw", hint="run for longer, or average over fewer"
        )
    smooth = {name: _means(np.asarray(each, dtype=np.float64), window) for name, each in losses.items()}
    figure = new_figure(11, 6)
    axes = axes_in_inches(figure, left=0.95, bottom=0.8, width=7.4, height=4.1)
    show_scales(axes, grid="y")
    for number, (name, means) in enumerate(smooth.items()):
        colour = INK if number == 0 else COLOURS[(number - 1) % len(COLOURS)]
        axes.plot(np.arange(len(means)) + window, means, color=colour, linewidth=2.0 if number == 0 else 1.2, gid=name)
    every = np.concatenate(list(smooth.values()))
    room = 0.03 * (every.max() - every.min())
    axes.set_ylim(every.min() - room, every.max() + room)
    axes.set_xlim(window, max(len(each) for each in losses.values()))
    axes.set_xlabel("step", color=MUTED)
    axes.set_ylabel(f"loss, mean over {window} steps", color=MUTED)
    first = next(iter(smooth))
    low, high = axes.get_ylim()
    rising = sorted(smooth, key=lambda name: smooth[name][-1])
    widths = [(high - low) * _LABEL_INCHES / 4.1] * len(rising)
    places = spread_apart([smooth[name][-1] for name in rising], widths, low=low, high=high)
    for place, name in zip(places, rising, strict=True):
        number = list(smooth).index(name)
        colour = INK if number == 0 else COLOURS[(number - 1) % len(COLOURS)]
        gap = "" if name == first else f" ({smooth[name][-1] - smooth[first][-1]:+.4f})"
        write(axes, axes.get_xlim()[1], place, f"  {name}{gap}", colour=colour, va="center", clip_on=False)
    worst = max(abs(means[-1] - smooth[first][-1]) for means in smooth.values())
    write_title(figure, title, f"all end within {worst:.4f} of {first}", left=0.4)
    return figure


def _means(losses: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of every `window` neighbours."""
    return np.convolve(losses, np.full(window, 1.0 / window), mode="valid")


def draw_knob(knobs: Sequence[float], figures: dict[str, Sequence[float]], *, against: str, chosen: float) -> Figure:
    """Return what the knob trades: each figure over that of another policy, from one end of the knob to the other."""
    figure = new_figure(10.0, 5.6)
    axes = axes_in_inches(figure, left=1.0, bottom=0.8, width=7.0, height=3.6)
    show_scales(axes, grid="y")
    axes.axhline(1.0, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    ends = []
    for position, (name, values) in enumerate(figures.items()):
        axes.plot(knobs, values, "o-", color=type_colour(position), linewidth=1.8, markersize=4.5)
        ends.append((values[-1], name, type_colour(position)))
    axes.axvline(chosen, color=FAINT, linewidth=1.2, zorder=0.5)
    axes.set_xlabel("knob: 0 = mean completion time, 1 = makespan", color=MUTED, fontsize=10, labelpad=8)
    axes.set_ylim(0, max(1.2, 1.08 * max(max(values) for values in figures.values())))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1f}x"))
    axes.annotate("default", (chosen, axes.get_ylim()[1]), (4, -3), textcoords="offset points", va="top", color=MUTED)
    top = axes.get_ylim()[1]
    ends.sort()
    places = spread_apart([value for value, _, _ in ends], [0.065 * top] * len(ends), low=0.0, high=top)
    for place, (_, name, colour) in zip(places, ends, strict=True):
        axes.annotate(
            name,
            (knobs[-1], place),
            (10, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=10,
            annotation_clip=False,
        )
    write_title(figure, "One knob", f"dovetail over {against}: below 1 is better", left=0.4)
    return figure
