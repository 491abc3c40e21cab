"""The picture of a plan: which layers run where, and what each stage takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from dovetail.charts.bars import BARS_HEIGHT, draw_bars
from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.labels import shorten
from dovetail.charts.legend import Legend
from dovetail.charts.page import FactTable
from dovetail.charts.palette import ALARM
from dovetail.charts.stage import stage_facts
from dovetail.charts.strip import StageLabels, Strip
from dovetail.cost import evaluate
from dovetail.spec import Plan, Problem
from dovetail.units import format_count, format_duration, format_usd

_PAGE_WIDTH, _LEFT = 13.0, 0.95


def draw_plan(problem: Problem, plan: Plan) -> Figure:
    """Return the picture of a plan: the layers as one strip coloured by type, and below it a bar for each stage.

    Raises PlanError where the plan does not fit the problem.
    """
    evaluation = evaluate(problem, plan.stages, split_stages=True)
    facts = stage_facts(problem, plan.stages, evaluation.bottleneck)
    legend = Legend.fit(problem, plan.stages, _PAGE_WIDTH - _LEFT)
    width = _PAGE_WIDTH - _LEFT - (0.75 + legend.width if legend.is_beside else 0.5)
    strip = Strip.fit([layer.name for layer in problem.layers], width)
    labels = StageLabels.fit(facts, strip)
    bottom = 0.2 if legend.is_beside else legend.height + 0.45
    strip_bottom = bottom + BARS_HEIGHT + 0.38 + strip.height_below
    height = max(strip_bottom + strip.height + labels.height, legend.height + 0.2) + 1.1
    figure = new_figure(_PAGE_WIDTH, height)
    axes = axes_in_inches(figure, left=_LEFT, bottom=strip_bottom, width=width, height=strip.height)
    strip.draw(axes, facts)
    labels.draw(axes, strip)
    draw_bars(figure, facts, problem.training, left=_LEFT, bottom=bottom, width=width)
    if legend.is_beside:
        legend.draw(figure, left=_PAGE_WIDTH - 0.3 - legend.width, top=height - 1.05)
    else:
        legend.draw(figure, left=_LEFT, top=legend.height + 0.25)
    hours = plan.hours if plan.hours is not None else evaluation.hours
    write_title(figure, _title(plan, hours), _subtitle(problem, plan), left=0.4)
    if evaluation.violations:
        _write_misses(figure, evaluation.violations)
    return figure


def plan_facts(problem: Problem, plan: Plan) -> FactTable:
    """Return the facts that `draw_plan` draws, one row a stage."""
    evaluation = evaluate(problem, plan.stages, split_stages=True)
    rows = []
    for fact in stage_facts(problem, plan.stages, evaluation.bottleneck):
        first, last = (problem.layers[fact.layers[end]].name for end in (0, -1))
        rows.append(
            (
                f"{fact.number}" + (" (bottleneck)" if fact.is_bottleneck else ""),
                first if first == last else f"{first} to {last}",
                fact.stage.resource,
                str(fact.stage.units),
                format_duration(fact.times.compute_s),
                format_duration(fact.times.comm_s),
                format_duration(fact.times.cut_s),
                format_duration(fact.times.seconds),
                format_usd(problem.resource(fact.stage.resource).price_per_hour * fact.stage.units),
            )
        )
    return FactTable(
        caption=f"Stages, in time for one batch of {problem.training.batch:,}",
        columns=("stage", "layers", "type", "units", "compute", "communication", "cuts", "stage takes", "USD/h"),
        rows=tuple(rows),
    )


def optimality(plan: Plan) -> str:
    """Return how far a plan's cost is proven; a percentage is rounded up, so that it stays true."""
    if plan.optimal:
        return "proven optimal"
    if plan.lower_bound <= 0:
        return "no bound proven"
    percent = 100 * (plan.cost - plan.lower_bound) / plan.lower_bound
    if percent <= 0:
        return "within 0% of the optimum"
    step = 10.0 ** (math.floor(math.log10(percent)) - 1)
    return f"within {math.ceil(percent / step - 1e-6) * step:.6g}% of the optimum"


def _title(plan: Plan, hours: float) -> str:
    """Return what a plan comes to."""
    return (
        f"{format_count(plan.samples_per_s)} samples/s  ·  {format_usd(plan.cost_per_hour)}/h  ·  "
        f"{format_usd(plan.cost)} in {format_duration(hours * 3600)}  ·  {optimality(plan)}"
    )


def _subtitle(problem: Problem, plan: Plan) -> str:
    """Return what the plan is made of, and by what."""
    num_types = len({stage.resource for stage in plan.stages})
    counts = ((len(problem.layers), "layer"), (len(plan.stages), "stage"), (num_types, "type"))
    layers, stages, types = (f"{count} {noun}{'s' if count != 1 else ''}" for count, noun in counts)
    egress = "" if plan.egress_cost is None else f", {format_usd(plan.egress_cost)} of the cost for bytes between sites"
    by = f"planned by {shorten(plan.method, 32)} in {format_duration(plan.seconds)}"
    return f"{layers} in {stages} on {types}, {by}{egress}"


def _write_misses(figure: Figure, violations: Sequence[str]) -> None:
    """Write in the corner, in red, that a plan misses demands: the first, and how many more."""
    width, height = figure.get_size_inches()
    more = f", and {len(violations) - 1} more" if len(violations) > 1 else ""
    words = figure.text(1 - 0.3 / width, 1 - 0.6 / height, shorten(f"misses a demand: {violations[0]}{more}", 84))
    words.set(ha="right", va="top", fontsize=10, fontweight="bold", color=ALARM, parse_math=False)
