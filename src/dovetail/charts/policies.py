"""Policies side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.page import FactTable
from dovetail.charts.schedule import draw_times
from dovetail.charts.style import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    shorten,
    text_width_inches,
)
from dovetail.simulator.metrics import Trial
from dovetail.spec.workload import Workload
from dovetail.units import format_duration

WIDTH = 12.0
LEFT, RIGHT = 1.15, 0.45


def draw_policies(workload: Workload, trials: Sequence[Trial]) -> Figure:
    """Return policies side by side: mean and p99 completion times as bars, and the whole distributions."""
    ranked = sorted(trials, key=lambda trial: trial.outcome.mean_jct_s)
    bars = 0.27 * len(ranked)
    height = 1.2 + bars + 0.6 + 3.4 + 0.75
    figure = new_figure(WIDTH, height)
    names_width = max(text_width_inches(trial.outcome.policy, 10) for trial in ranked) + 0.25
    left = 0.4 + names_width
    width = (WIDTH - left - RIGHT - 1.2) / 3
    columns: tuple[tuple[str, Callable[[Trial], float], Callable[[float], str]], ...] = (
        ("mean completion time", lambda trial: trial.outcome.mean_jct_s, format_duration),
        ("p99 completion time", lambda trial: trial.outcome.p99_jct_s, format_duration),
        ("restarts", lambda trial: float(trial.outcome.restarts), lambda count: f"{count:,.0f}"),
    )
    for place, (title, figure_of, words) in enumerate(columns):
        axes = axes_in_inches(
            figure, left=left + place * (width + 0.6), bottom=height - 1.2 - bars, width=width, height=bars
        )
        values = [figure_of(trial) for trial in ranked]
        _draw_bars(axes, values, [words(value) for value in values], ranked, title, with_names=place == 0)
    axes = axes_in_inches(figure, left=LEFT, bottom=0.75, width=WIDTH - LEFT - RIGHT, height=3.4)
    draw_times(axes, ranked, workload)
    best = ranked[0].outcome
    write_title(
        figure,
        "Policies side by side",
        f"{len(workload.jobs):,} jobs on {_cluster(workload)} · least mean completion time: {best.policy}, "
        f"{format_duration(best.mean_jct_s)}",
        left=0.4,
    )
    return figure


def policy_facts(trials: Sequence[Trial]) -> FactTable:
    """Return what `draw_policies` draws, one row a policy."""
    ranked = sorted(trials, key=lambda trial: trial.outcome.mean_jct_s)
    return FactTable(
        caption="Policies, the least mean completion time first",
        columns=("policy", "mean", "p50", "p99", "makespan", "restarts", "workers held"),
        rows=tuple(
            (
                trial.outcome.policy,
                *(
                    format_duration(getattr(trial.outcome, name))
                    for name in ("mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s")
                ),
                f"{trial.outcome.restarts:,}",
                f"{trial.outcome.utilization:.1%}",
            )
            for trial in ranked
        ),
    )


def _draw_bars(
    axes: Axes, values: Sequence[float], words: Sequence[str], trials: Sequence[Trial], title: str, *, with_names: bool
) -> None:
    """Draw one figure of all policies as bars, with the figure beside each."""
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_xlim(0, 1.3 * max(1e-9, *values))
    for place, (value, word, trial) in enumerate(zip(values, words, trials, strict=True)):
        is_ours = trial.outcome.policy == "dovetail"
        axes.barh(place, value, height=0.66, color=ACCENT if is_ours else FAINT, gid=f"bar-{trial.outcome.policy}")
        axes.annotate(
            word,
            (value, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
            fontweight="bold" if is_ours else "normal",
        )
        if with_names:
            axes.annotate(
                trial.outcome.policy,
                (0, place),
                (-6, 0),
                textcoords="offset points",
                va="center",
                ha="right",
                fontsize=10,
                color=INK,
                fontweight="bold" if is_ours else "normal",
                annotation_clip=False,
            )
    axes.text(0, -0.75, title, fontsize=10, color=MUTED, va="bottom")


def _cluster(workload: Workload) -> str:
    """Return the workers of each type: `64 v100`."""
    return " + ".join(f"{workers:,} {shorten(name, 12)}" for name, workers in workload.capacity.items())
