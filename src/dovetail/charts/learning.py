"""The picture of a planner that learns: what its plans cost, round after round."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from dovetail.charts.comparison import format_ratio
from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.page import FactTable
from dovetail.charts.style import ACCENT, INK, MUTED, log_ticks, show_scales, spans_over, spread_apart, usd_ticks
from dovetail.errors import DovetailError
from dovetail.units import format_count, format_usd

_MEAN_COLOUR = "#d55e00"
_LABEL_INCHES = 0.5
_CLOSE_ENOUGH = 1e-6
"""A cost within this fraction of the lower bound is the optimum."""


def draw_learning(
    rounds: Sequence[int],
    mean_cost: Sequence[float],
    best_cost: Sequence[float],
    lower_bound: float | None,
    title: str,
    *,
    measured_from: int | None = None,
) -> Figure:
    """Return how the mean cost of a round's plans and the best cost so far fall towards the least that is possible.

    A round without a plan that meets the demands has no mean (infinite or NaN), and a gap in the line. Costs are the
    model's up to the round `measured_from`; from there on they are measured, and the best so far starts anew.
    """
    _check_lengths(rounds, mean_cost, best_cost)
    figure = new_figure(11, 6)
    axes = axes_in_inches(figure, left=1.05, bottom=0.85, width=7.95, height=4.05)
    show_scales(axes, grid="y")
    means, bests = _drawable(mean_cost), _drawable(best_cost)
    marker = "o" if len(rounds) == 1 else None
    axes.plot(rounds, means, color=_MEAN_COLOUR, linewidth=1.3, marker=marker, gid="mean")
    axes.plot(rounds, bests, color=ACCENT, linewidth=2.2, marker=marker, drawstyle="steps-post", gid="best")
    bound_words = _bound_words(bests, lower_bound)
    if lower_bound is not None:
        axes.axhline(lower_bound, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), gid="lower bound")
    known = [cost for cost in (*means, *bests, lower_bound) if cost is not None and not math.isnan(cost)]
    _set_scales(axes, rounds, known)
    if measured_from is not None:
        _mark_measured(axes, measured_from)
    _label_ends(axes, {"round mean": _last(means), "best so far": _last(bests)}, lower_bound, bound_words)
    write_title(figure, title, _outcome(rounds, bests, lower_bound, bound_words, measured_from), left=0.4)
    return figure


def learning_facts(
    rounds: Sequence[int],
    mean_cost: Sequence[float],
    best_cost: Sequence[float],
    lower_bound: float | None,
    *,
    measured_from: int | None = None,
) -> FactTable:
    """Return the facts that `draw_learning` draws: at most 40 rounds, evenly spaced, the last always among them."""
    _check_lengths(rounds, mean_cost, best_cost)
    stride = math.ceil(len(rounds) / 40)
    chosen = range((len(rounds) - 1) % stride, len(rounds), stride)
    bound_words = _bound_words(_drawable(best_cost), lower_bound)
    against = "" if lower_bound is None else f"; the {bound_words} is {format_usd(lower_bound)}"
    measured = "" if measured_from is None else f", measured from round {measured_from:,} on"
    return FactTable(
        caption=f"Cost by round{measured}{against}",
        columns=("round", "mean cost", "best cost so far"),
        rows=tuple(
            (str(rounds[at]), _cost_words(mean_cost[at], lower_bound), _cost_words(best_cost[at], lower_bound))
            for at in chosen
        ),
    )


def _check_lengths(rounds: Sequence[int], mean_cost: Sequence[float], best_cost: Sequence[float]) -> None:
    """Refuse rounds without costs, and costs without rounds."""
    if not rounds or not len(rounds) == len(mean_cost) == len(best_cost):
        raise DovetailError(
            f"there are {len(rounds)} rounds, {len(mean_cost)} mean costs and {len(best_cost)} best costs",
            hint="pass one mean and one best cost for each round, and at least one round",
        )


def _drawable(costs: Sequence[float]) -> list[float]:
    """Return costs with NaN, which no line goes through, in place of infinity."""
    return [cost if math.isfinite(cost) else math.nan for cost in costs]


def _last(costs: Sequence[float]) -> float | None:
    """Return the last cost that is known, or None."""
    return next((cost for cost in reversed(costs) if not math.isnan(cost)), None)


def _bound_words(bests: Sequence[float], lower_bound: float | None) -> str:
    """Return what the lower bound is: the optimum where a plan was met that costs no more, else just a bound."""
    best = _last(bests)
    if best is None or lower_bound is None:
        return "lower bound"
    return "optimum" if math.isclose(best, lower_bound, rel_tol=_CLOSE_ENOUGH) else "lower bound"


def _set_scales(axes: Axes, rounds: Sequence[int], known: Sequence[float]) -> None:
    """Leave room around the lines; scale the cost by its logarithm where it spans more than tenfold."""
    axes.set_xlim(rounds[0] - 0.5 if len(rounds) == 1 else rounds[0], rounds[-1] + 0.5 * (len(rounds) == 1))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))
    if known and spans_over(known, 10):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(log_ticks(known))
        axes.set_ylim(min(known) / 1.3, max(known) * 1.2)
    elif known:
        margin = 0.08 * (max(known) - min(known)) or 0.1 * abs(max(known)) or 1.0
        axes.set_ylim(min(known) - margin, max(known) + margin)
    axes.yaxis.set_major_formatter(usd_ticks())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("round", color=MUTED, fontsize=10, labelpad=8)
    axes.set_ylabel("USD for the whole training", color=MUTED, fontsize=10, labelpad=8)


def _mark_measured(axes: Axes, measured_from: int) -> None:
    """Draw where costs begin to be measured."""
    axes.axvline(measured_from, color=MUTED, linewidth=0.9, gid="measured")
    axes.annotate(
        "measured from here",
        (measured_from, 1.0),
        (0, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
        fontsize=9.5,
        color=MUTED,
    )


def _label_ends(axes: Axes, ends: dict[str, float | None], lower_bound: float | None, bound_words: str) -> None:
    """Write the last value of each line in the margin beside it, moved apart where they meet."""
    colours = {bound_words: INK, "best so far": ACCENT, "round mean": _MEAN_COLOUR}
    values = {name: cost for name, cost in {**ends, bound_words: lower_bound}.items() if cost is not None}
    height = axes.bbox.height / axes.figure.dpi
    at = {
        name: axes.transAxes.inverted().transform(axes.transData.transform((0, cost)))[1]
        for name, cost in values.items()
    }
    order = sorted(values, key=lambda name: (at[name], list(colours).index(name)))
    wanted = [at[name] * height for name in order]
    places = spread_apart(wanted, [_LABEL_INCHES] * len(order), low=-0.2, high=height + 0.2)
    for name, place in zip(order, places, strict=True):
        axes.annotate(
            f"{name}\n{_cost_words(values[name], lower_bound if name != bound_words else None)}",
            (1.0, at[name]),
            (1.0 + 0.3 / (axes.bbox.width / axes.figure.dpi), place / height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9.5,
            linespacing=1.3,
            color=colours[name],
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colours[name],
                "linewidth": 0.7,
                "shrinkA": 2,
                "shrinkB": 2,
                "relpos": (0.0, 0.5),
            },
        )


def _cost_words(cost: float, lower_bound: float | None) -> str:
    """Return a cost, with how many times the lower bound it is where one is known."""
    if not math.isfinite(cost):
        return "no plan"
    ratio = f" ({format_ratio(cost / lower_bound)})" if lower_bound else ""
    return f"{format_usd(cost)}{ratio}"


def _outcome(
    rounds: Sequence[int],
    bests: Sequence[float],
    lower_bound: float | None,
    bound_words: str,
    measured_from: int | None,
) -> str:
    """Return where learning ended up, and when it got there: among the measured rounds, if any were measured."""
    begin = measured_from or rounds[0]
    counted = [(number, cost) for number, cost in zip(rounds, bests, strict=True) if number >= begin]
    best = _last([cost for _, cost in counted])
    if best is None:
        return f"no plan that meets the demands in {format_count(len(rounds))} rounds"
    found_in = next(number for number, cost in counted if cost <= best)
    words = f"best plan {format_usd(best)}, found in round {found_in:,} of {rounds[-1]:,}"
    if not lower_bound:
        return words
    return f"{words}, {format_ratio(best / lower_bound)} the {bound_words} of {format_usd(lower_bound)}"
