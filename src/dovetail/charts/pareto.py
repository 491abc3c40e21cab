"""The picture of a trade: what each speed costs at least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from matplotlib.transforms import Bbox

from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.page import FactTable
from dovetail.charts.style import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    PAPER,
    finite_and_positive,
    log_ticks,
    shorten,
    show_scales,
    spans_over,
    usd_ticks,
)
from dovetail.errors import DovetailError
from dovetail.spec import Plan
from dovetail.units import format_count, format_duration, format_usd

_MAX_LABELS = 12


def draw_pareto(plans: Sequence[Plan]) -> Figure:
    """Return what the whole training costs against how fast it goes.

    The line is the price of a speed: to go at least this fast, pay the cost of the next plan to the right. A plan that
    another beats in both is a hollow point off the line. Labels give units per type, as many as find room.
    """
    shown = _by_speed(plans)
    best = frontier(shown)
    beaten = [plan for plan in shown if plan not in best]
    figure = new_figure(11, 6.6)
    axes = axes_in_inches(figure, left=1.05, bottom=0.85, width=9.6, height=4.65)
    show_scales(axes, grid="both")
    axes.scatter([p.samples_per_s for p in beaten], [p.cost for p in beaten], 26, facecolors="none", edgecolors=MUTED)
    speeds, costs = [plan.samples_per_s for plan in best], [plan.cost for plan in best]
    axes.plot(
        speeds, costs, drawstyle="steps-pre", color=ACCENT, linewidth=1.6, solid_joinstyle="round", gid="frontier"
    )
    axes.plot(speeds, costs, "o", color=ACCENT, markersize=6)
    _set_scales(axes, shown)
    _label_points(figure, axes, best)
    write_title(figure, "What speed costs", _range_words(best, len(beaten)), left=0.4)
    return figure


def pareto_facts(plans: Sequence[Plan]) -> FactTable:
    """Return the facts that `draw_pareto` draws, one row a plan from the slowest to the fastest."""
    shown = _by_speed(plans)
    best = frontier(shown)
    return FactTable(
        caption="Plans from the slowest to the fastest",
        columns=("samples/s", "cost", "USD/h", "time", "units", "on the line"),
        rows=tuple(
            (
                format_count(plan.samples_per_s),
                format_usd(plan.cost),
                format_usd(plan.cost_per_hour),
                format_duration(plan.hours * 3600) if plan.hours is not None else "",
                units_per_type(plan, max_types=64),
                "yes" if plan in best else "no",
            )
            for plan in shown
        ),
    )


def frontier(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that no other beats in both speed and cost, from the slowest to the fastest."""
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (-plan.samples_per_s, plan.cost)):
        if not best or plan.cost < best[-1].cost:
            best.append(plan)
    return best[::-1]


def units_per_type(plan: Plan, *, max_types: int = 3) -> str:
    """Return a plan's units as `40 cpu + 8 v100`, types with the most units first."""
    units: Counter[str] = Counter()
    for stage in plan.stages:
        units[stage.resource] += stage.units
    parts = [f"{count} {shorten(name, 18)}" for name, count in units.most_common(max_types)]
    left_out = len(units) - len(parts)
    return " + ".join(parts) + (f" + {left_out} more types" if left_out > 1 else " + 1 more type" if left_out else "")


def _range_words(best: Sequence[Plan], num_beaten: int) -> str:
    """Return from where to where the line goes, and how many plans lie off it."""
    slow, fast = (
        f"{format_usd(plan.cost)} at {format_count(plan.samples_per_s)} samples/s" for plan in (best[0], best[-1])
    )
    words = f"{len(best)} plans from {slow} to {fast}" if len(best) > 1 else f"one plan, {slow}"
    return words + (f"  ·  {num_beaten} beaten by others (hollow)" if num_beaten else "")


def _by_speed(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that have a place on the chart, from the slowest to the fastest."""
    shown = [plan for plan in plans if finite_and_positive(plan.samples_per_s) and finite_and_positive(plan.cost)]
    if not shown:
        raise DovetailError(
            "there is no plan with a speed and a cost above zero to draw", hint="pass the plans of at least one floor"
        )
    return sorted(shown, key=lambda plan: (plan.samples_per_s, plan.cost))


def _set_scales(axes: Axes, plans: Sequence[Plan]) -> None:
    """Scale speed by its logarithm, and cost too where it spans much."""
    speeds, costs = [plan.samples_per_s for plan in plans], [plan.cost for plan in plans]
    axes.set_xscale("log")
    stretch = (max(speeds) / min(speeds)) ** 0.07 * 1.06
    axes.set_xlim(min(speeds) / stretch, max(speeds) * stretch)
    axes.xaxis.set_major_locator(log_ticks(speeds))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda speed, _: format_count(speed)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if spans_over(costs, 30):
        axes.set_yscale("log")
        stretch = (max(costs) / min(costs)) ** 0.12 * 1.1
        axes.set_ylim(min(costs) / stretch, max(costs) * stretch)
        axes.yaxis.set_major_locator(log_ticks(costs))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif spans_over(costs, 2) or len(set(costs)) == 1:
        axes.set_ylim(0, max(costs) * 1.18)
    else:
        room = 0.3 * (max(costs) - min(costs))
        axes.set_ylim(min(costs) - room, max(costs) + room)
    axes.yaxis.set_major_formatter(usd_ticks())
    axes.set_xlabel("samples per second", color=MUTED, fontsize=10, labelpad=8)
    axes.set_ylabel("USD for the whole training", color=MUTED, fontsize=10, labelpad=8)


def _label_points(figure: Figure, axes: Axes, best: Sequence[Plan]) -> None:
    """Label the cheapest and the fastest plan, then as many between as find room.

    The line only rises, so it leaves the quarters below right and above left of each point free.
    """
    cheapest, fastest = 0, len(best) - 1
    taken: list[Bbox] = []
    between = sorted(range(1, fastest), key=lambda position: _halvings(position, len(best)))
    for position in [cheapest, fastest, *between] if fastest else [cheapest]:
        if len(taken) == _MAX_LABELS:
            break
        plan = best[position]
        is_end = position in (cheapest, fastest)
        words = units_per_type(plan)
        if is_end:
            name = "cheapest" if position == cheapest else "fastest"
            name = name if fastest else "cheapest and fastest"
            words = f"{name}: {format_usd(plan.cost)}\n{words}"
            axes.plot(
                plan.samples_per_s, plan.cost, "o", markersize=11, markerfacecolor="none", markeredgecolor=INK, gid=name
            )
        above_left_first = position == fastest and fastest > 0
        for above_left in (above_left_first, not above_left_first):
            label = axes.annotate(
                words,
                (plan.samples_per_s, plan.cost),
                (-9, 5) if above_left else (9, -5),
                textcoords="offset points",
                ha="right" if above_left else "left",
                va="bottom" if above_left else "top",
                fontsize=9.5 if is_end else 8.5,
                fontweight="bold" if is_end else "normal",
                color=INK if is_end else MUTED,
                linespacing=1.35,
                bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1},
                zorder=1.5,
                parse_math=False,
            )
            box = label.get_window_extent(figure.canvas.get_renderer()).padded(9)  # type: ignore[attr-defined]
            frame = axes.get_window_extent()
            inside = box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1 + 20
            if inside and not box.count_overlaps(taken):
                taken.append(box)
                break
            label.remove()
    axes.axhline(best[0].cost, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)


def _halvings(position: int, count: int) -> tuple[int, int]:
    """Return a key that sorts positions middle first, then quarters, then eighths, so that labels spread evenly."""
    step, turn = count // 2, 0
    while step > 1 and position % step:
        step, turn = step // 2, turn + 1
    return turn, position
