"""The picture of methods side by side: how far each stays from the best plan there is."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.page import FactTable
from dovetail.charts.style import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    QUIET,
    finite_and_positive,
    log_ticks,
    shorten,
    show_scales,
    spans_over,
    text_width_inches,
    write,
)
from dovetail.errors import DovetailError
from dovetail.spec import Plan
from dovetail.units import format_duration, format_usd

_ROW_INCHES = 0.36
_AS_GOOD = 1 + 1e-6


def draw_comparison(plans: Sequence[Plan], optimum: float) -> Figure:
    """Return one bar a method, cheapest first, as long as its cost is times `optimum`.

    The scale is logarithmic where the costs span more than tenfold.
    """
    ranked = _by_cost(plans, optimum)
    ratios = [plan.cost / optimum for plan in ranked]
    names = [shorten(plan.method, 28) for plan in ranked]
    left = 0.55 + max(text_width_inches(name, 10.5) for name in names)
    height = _ROW_INCHES * len(ranked)
    figure = new_figure(11, height + 1.95)
    width = 11 - left - 3.15
    axes = axes_in_inches(figure, left=left, bottom=0.75, width=width, height=height)
    show_scales(axes, grid="x")
    axes.tick_params(axis="y", labelsize=10.5, labelcolor=INK, pad=6)
    is_log = spans_over([*ratios, 1.0], 10)
    base = min(1.0, *ratios) * 0.8 if is_log else 0.0
    places = list(range(len(ranked)))
    colours = [ACCENT if ratio <= _AS_GOOD else QUIET for ratio in ratios]
    axes.barh(places, [ratio - base for ratio in ratios], 0.62, left=base, color=colours)
    axes.axvline(1.0, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), gid="optimum")
    axes.set_xscale("log" if is_log else "linear")
    axes.set_xlim(base, max(*ratios, 1.0) * 1.02)
    axes.set_ylim(len(ranked) - 0.5, -0.5)
    axes.xaxis.set_major_locator(log_ticks([*ratios, 1.0]) if is_log else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(places, names, parse_math=False)
    axes.set_xlabel("cost / optimum" + (" (log scale)" if is_log else ""), color=MUTED, fontsize=10, labelpad=8)
    _write_columns(figure, ranked, optimum, left=left + width + 0.15, bottom=0.75, height=height)
    best = sum(ratio <= _AS_GOOD for ratio in ratios)
    write_title(
        figure,
        f"{best} of {len(ranked)} methods {'finds' if best == 1 else 'find'} the optimum",
        f"cost of each method's plan against the optimum of {format_usd(optimum)} (dashed)",
        left=0.4,
    )
    return figure


def comparison_facts(plans: Sequence[Plan], optimum: float) -> FactTable:
    """Return the facts that `draw_comparison` draws, one row a method."""
    return FactTable(
        caption=f"Methods by cost; the optimum is {format_usd(optimum)}",
        columns=("method", "cost / optimum", "cost", "planned in"),
        rows=tuple(
            (plan.method, format_ratio(plan.cost / optimum), format_usd(plan.cost), format_duration(plan.seconds))
            for plan in _by_cost(plans, optimum)
        ),
    )


def format_ratio(ratio: float) -> str:
    """Return how many times the optimum a cost is: `1x`, `1.034x`, `12.5x`; only what is optimal rounds to 1."""
    if abs(ratio - 1) <= 1e-6:
        return "1x"
    if ratio < 1.001:
        return f"{ratio:.7g}x"
    return f"{ratio:.4g}x" if ratio < 10 else f"{ratio:,.3g}x" if ratio < 1000 else f"{ratio:,.0f}x"


def _by_cost(plans: Sequence[Plan], optimum: float) -> list[Plan]:
    """Return the plans from the cheapest to the dearest; equals stand in order of planning time."""
    if not plans:
        raise DovetailError("there are no plans to compare", hint="pass the plan of at least one method")
    if not finite_and_positive(optimum):
        raise DovetailError(f"optimum is {optimum}, expected USD above zero", hint="pass the cost of the best plan")
    for plan in plans:
        if not finite_and_positive(plan.cost):
            raise DovetailError(
                f"the plan of method `{plan.method}` costs {plan.cost}, expected USD above zero",
                hint="leave out methods that found no plan",
            )
    return sorted(plans, key=lambda plan: (plan.cost, plan.seconds, plan.method))


def _write_columns(
    figure: Figure, ranked: Sequence[Plan], optimum: float, *, left: float, bottom: float, height: float
) -> None:
    """Write ratio, cost and planning time beside the bars, as three columns set flush right."""
    axes = axes_in_inches(figure, left=left, bottom=bottom, width=2.75, height=height)
    axes.set_xlim(0, 2.75)
    axes.set_ylim(len(ranked) - 0.5, -0.5)
    for right_edge, header in ((0.75, "ratio"), (1.8, "cost"), (2.75, "planned in")):
        write(axes, right_edge, -0.62, header, size=9, colour=MUTED, ha="right", va="bottom")
    axes.plot([0.1, 2.75], [-0.5, -0.5], color=FAINT, linewidth=0.8)
    for place, plan in enumerate(ranked):
        ratio = plan.cost / optimum
        cells = (format_ratio(ratio), format_usd(plan.cost), format_duration(plan.seconds))
        for right_edge, cell in zip((0.75, 1.8, 2.75), cells, strict=True):
            is_best = right_edge == 0.75 and ratio <= _AS_GOOD
            weight = "bold" if right_edge == 0.75 else "normal"
            looks = {"colour": ACCENT if is_best else INK, "fontweight": weight}
            write(axes, right_edge, place, cell, size=10, ha="right", va="center_baseline", **looks)
