"""Who held which workers when: bands of jobs on numbered workers, one lane a worker."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.ticker import MaxNLocator

from dovetail.charts.labels import shorten, text_width_inches
from dovetail.charts.palette import INK, PAPER, ink_on
from dovetail.charts.scales import show_scales
from dovetail.simulator.metrics import Change
from dovetail.spec.workload import Workload


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
