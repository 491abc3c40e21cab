"""How long jobs took: the share of them done within a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dovetail.charts.palette import ACCENT, INK, MUTED, type_colour
from dovetail.charts.scales import show_scales
from dovetail.simulator.metrics import Trial
from dovetail.spec.workload import Workload
from dovetail.units import format_duration

_ROUND_TIMES_S = (1.0, 10.0, 60.0, 300.0, 1200.0, 3600.0, 14400.0, 57600.0, 2 * 86400.0, 10 * 86400.0, 50 * 86400.0)
"""Completion times that read well on a log scale."""


def draw_times(axes: Axes, trials: Sequence[Trial], workload: Workload) -> None:
    """Draw the share of jobs done within a time, one line a policy; the first is the one that stands out."""
    show_scales(axes, grid="both")
    submits = {job.id: job.submit_s for job in workload.jobs}
    for position, trial in reversed(list(enumerate(trials))):
        times = np.sort([job.finish_s - submits[job.id] for job in trial.outcome.jobs])
        share = np.arange(1, len(times) + 1) / len(times)
        first = trial.outcome.policy == "dovetail" or len(trials) == 1
        axes.plot(
            times,
            share,
            drawstyle="steps-post",
            color=ACCENT if first else type_colour(position + 1),
            linewidth=2.2 if first else 1.2,
            linestyle="-" if position < 8 else (0, (4, 2)),
            alpha=1.0 if first else 0.85,
            label=trial.outcome.policy,
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(FixedLocator(_ROUND_TIMES_S))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_duration(seconds)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.set_xlabel("completion time", color=MUTED, fontsize=10, labelpad=6)
    axes.set_ylabel("jobs done", color=INK, fontsize=10, labelpad=8)
    if len(trials) > 1:
        axes.legend(fontsize=8.5, frameon=False, labelcolor=INK, ncols=2, loc="lower right")
        return
    outcome = trials[0].outcome
    marks = (("p50", outcome.p50_jct_s, 0.06), ("mean", outcome.mean_jct_s, 0.18), ("p99", outcome.p99_jct_s, 0.06))
    for name, seconds, y in marks:
        axes.axvline(seconds, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        far_right = np.searchsorted(sorted(job.finish_s - submits[job.id] for job in outcome.jobs), seconds) > (
            0.9 * len(outcome.jobs)
        )
        axes.annotate(
            f"{name} {format_duration(seconds)}",
            (seconds, y),
            (-4 if far_right else 4, 0),
            textcoords="offset points",
            ha="right" if far_right else "left",
            fontsize=9,
            color=INK,
        )
