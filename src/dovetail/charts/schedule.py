"""One policy's schedule: who held which workers when, who waited, and how long jobs took."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from dovetail.charts.completion import draw_times
from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.labels import shorten
from dovetail.charts.lanes import bands, draw_lanes
from dovetail.charts.page import FactTable
from dovetail.charts.palette import ALARM, INK, type_colour
from dovetail.charts.scales import show_scales
from dovetail.simulator.metrics import Change, Trial
from dovetail.spec.workload import Workload
from dovetail.units import format_duration

WIDTH = 12.0
LEFT, RIGHT = 1.15, 0.45
LANES_HEIGHT = 4.4
CURVE_HEIGHT = 2.3
MOST_ROWS = 400


def draw_schedule(workload: Workload, trial: Trial) -> Figure:
    """Return the allocation over time, one panel a type with its workers as rows, and how long jobs took.

    A job is a band in its own colour, as high as its workers; a dark edge marks a restart. Below, jobs that wait, then
    the share of jobs done within a time.
    """
    capacity = workload.capacity
    total = sum(capacity.values())
    gaps = 0.16 * (len(capacity) - 1)
    height = 1.15 + LANES_HEIGHT + gaps + 0.35 + 0.7 + 0.75 + CURVE_HEIGHT + 0.75
    figure = new_figure(WIDTH, height)
    width = WIDTH - LEFT - RIGHT
    outcome = trial.outcome
    first_s = min(job.submit_s for job in workload.jobs)
    span = (first_s, first_s + outcome.makespan_s)
    drawn = bands(workload, trial.changes)
    colours = {job.id: type_colour(position) for position, job in enumerate(workload.jobs)}
    top = height - 1.15
    for name, workers in capacity.items():
        panel = max(0.35, LANES_HEIGHT * workers / total)
        axes = axes_in_inches(figure, left=LEFT, bottom=top - panel, width=width, height=panel)
        draw_lanes(axes, [band for band in drawn if band.type == name], colours, workers, span, width, panel)
        axes.set_ylabel(shorten(name, 12), color=INK, fontsize=10, labelpad=8)
        top -= panel + 0.16
    _draw_waiting(axes_in_inches(figure, left=LEFT, bottom=top - 0.75, width=width, height=0.7), workload, trial, span)
    draw_times(axes_in_inches(figure, left=LEFT, bottom=0.75, width=width, height=CURVE_HEIGHT), [trial], workload)
    write_title(
        figure,
        f"{len(workload.jobs):,} jobs under {outcome.policy}",
        f"mean {format_duration(outcome.mean_jct_s)} · p99 {format_duration(outcome.p99_jct_s)} · all done in "
        f"{format_duration(outcome.makespan_s)} · {outcome.restarts:,} restarts (dark edges) · "
        f"{outcome.utilization:.0%} of the workers held",
        left=0.4,
    )
    return figure


def schedule_facts(workload: Workload, trial: Trial) -> FactTable:
    """Return what `draw_schedule` draws, one row a job in order of submission."""
    submits = {job.id: job.submit_s for job in workload.jobs}
    jobs = sorted(trial.outcome.jobs, key=lambda job: submits[job.id])[:MOST_ROWS]
    return FactTable(
        caption=f"Jobs under {trial.outcome.policy}, in order of submission",
        columns=("job", "submitted", "waited", "took", "restarts"),
        rows=tuple(
            (
                job.id,
                format_duration(submits[job.id]),
                format_duration(job.start_s - submits[job.id]),
                format_duration(job.finish_s - submits[job.id]),
                str(job.restarts),
            )
            for job in jobs
        ),
    )


def _draw_waiting(axes: Axes, workload: Workload, trial: Trial, span: tuple[float, float]) -> None:
    """Draw how many jobs are there and hold no workers."""
    show_scales(axes, grid="x")
    steps = sorted(
        [(job.submit_s, 1) for job in workload.jobs] + _waiting_steps(trial.changes), key=lambda step: step[0]
    )
    times = [span[0]]
    counts = [0]
    for t_s, step in steps:
        times.append(t_s)
        counts.append(counts[-1] + step)
    axes.fill_between([*times, span[1]], [*counts, counts[-1]], step="post", color=ALARM, alpha=0.75, linewidth=0)
    axes.set_xlim(*span)
    axes.set_ylim(0, max(1, *counts) * 1.1)
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.xaxis.set_major_locator(MultipleLocator(_round_step_s(span[1] - span[0]), offset=span[0]))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda t_s, _: format_duration(t_s - span[0]) if t_s > span[0] else "0")
    )
    axes.set_ylabel("waiting", color=INK, fontsize=10, labelpad=8)


def _round_step_s(span_s: float) -> float:
    """Return a step of round minutes, hours or days that cuts a span into about eight."""
    steps = [unit * count for unit in (1, 60, 3600) for count in (1, 2, 5, 10, 30)]
    steps += [3600 * hours for hours in (2, 3, 4, 6, 12)] + [86400 * days for days in (1, 2, 5, 10, 20, 50, 100, 500)]
    return float(min(steps, key=lambda step: abs(span_s / step - 8)))


def _waiting_steps(changes: Sequence[Change]) -> list[tuple[float, int]]:
    """Return how the number of waiting jobs changes: down at a start, up at a stop that is not the end."""
    last_stop = {change.job: place for place, change in enumerate(changes) if not change.workers}
    steps = []
    for place, change in enumerate(changes):
        if change.workers:
            steps.append((change.t_s, -1))
        elif last_stop[change.job] != place:
            steps.append((change.t_s, 1))
    return steps
