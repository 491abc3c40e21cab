"""One policy's schedule: who held which workers when, who waited, and how long jobs took."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, MultipleLocator, NullLocator

from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.page import FactTable
from dovetail.charts.style import (
    ACCENT,
    ALARM,
    INK,
    MUTED,
    PAPER,
    ink_on,
    shorten,
    show_scales,
    text_width_inches,
    type_colour,
)
from dovetail.simulator.metrics import Change, Trial
from dovetail.spec.workload import Workload
from dovetail.units import format_duration

_ROUND_TIMES_S = (1.0, 10.0, 60.0, 300.0, 1200.0, 3600.0, 14400.0, 57600.0, 2 * 86400.0, 10 * 86400.0, 50 * 86400.0)
"""Completion times that read well on a log scale."""
WIDTH = 12.0
LEFT, RIGHT = 1.15, 0.45
LANES_HEIGHT = 4.4
CURVE_HEIGHT = 2.3
MOST_ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One job on some neighbouring workers of a type for a while."""

    job: str
    type: str
    first_lane: int
    num_lanes: int
    start_s: float
    end_s: float
    is_restart: bool


def bands(workload: Workload, changes: Sequence[Change]) -> list[Band]:
    """Return who held which workers when; workers are numbered, and a job takes neighbours where it can."""
    free = {name: list(range(workers)) for name, workers in workload.capacity.items()}
    open_since: dict[str, tuple[Change, list[int]]] = {}
    started: set[str] = set()
    found: list[Band] = []
    for change in changes:
        if change.job in open_since:
            since, lanes = open_since.pop(change.job)
            found += [
                Band(
                    job=change.job,
                    type=since.type,
                    first_lane=first,
                    num_lanes=count,
                    start_s=since.t_s,
                    end_s=change.t_s,
                    is_restart=change.job in started,
                )
                for first, count in _runs(lanes)
            ]
            started.add(change.job)
            for lane in lanes:
                insort(free[since.type], lane)
        if change.workers:
            lanes = _take(free[change.type], change.workers)
            open_since[change.job] = (change, lanes)
    return found


def _runs(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Return runs of neighbouring lanes as (first, count)."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and sum(runs[-1]) == lane:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((lane, 1))
    return runs


def _take(free: list[int], count: int) -> list[int]:
    """Take lanes from those that are free: the shortest run that is long enough, else the lowest."""
    fitting = [run for run in _runs(free) if run[1] >= count]
    start = min(fitting, key=lambda run: run[1])[0] if fitting else None
    lanes = free[:count] if start is None else list(range(start, start + count))
    for lane in lanes:
        free.remove(lane)
    return lanes


def draw_lanes(
    axes: Axes,
    drawn: Sequence[Band],
    colours: dict[str, str],
    workers: int,
    span: tuple[float, float],
    width: float,
    height: float,
) -> None:
    """Draw the bands of one type."""
    show_scales(axes, grid="x")
    axes.set_xlim(*span)
    axes.set_ylim(0, workers)
    axes.set_xticklabels([])
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_facecolor("#f1f2f4")
    boxes, edges = [], []
    for band in drawn:
        low, high = band.first_lane, band.first_lane + band.num_lanes
        boxes.append([(band.start_s, low), (band.end_s, low), (band.end_s, high), (band.start_s, high)])
        if band.is_restart:
            edges.append([(band.start_s, low), (band.start_s, high)])
    axes.add_collection(
        PolyCollection(
            boxes, facecolors=[colours[band.job] for band in drawn], edgecolors=PAPER, linewidths=0.35, gid="bands"
        )
    )
    axes.add_collection(LineCollection(edges, colors=INK, linewidths=1.1, gid="restarts", zorder=3))
    seconds_per_inch = (span[1] - span[0]) / width
    for band in drawn:
        tall = band.num_lanes / workers * height
        wide = (band.end_s - band.start_s) / seconds_per_inch
        label = shorten(band.job, 14)
        if tall >= 0.16 and wide >= text_width_inches(label, 7.5) + 0.1:
            axes.text(
                (band.start_s + band.end_s) / 2,
                band.first_lane + band.num_lanes / 2,
                label,
                ha="center",
                va="center",
                fontsize=7.5,
                color=ink_on(colours[band.job]),
                parse_math=False,
            )


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
