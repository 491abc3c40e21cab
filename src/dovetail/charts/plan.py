"""The picture of a plan: which layers run where, and what each stage takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dovetail.charts.figure import (
    ALARM,
    FAINT,
    INK,
    MUTED,
    PAPER,
    FactTable,
    axes_in_inches,
    ink_on,
    new_figure,
    shorten,
    show_scales,
    spread_apart,
    text_width_inches,
    type_colour,
    write_title,
)
from dovetail.cost import evaluate
from dovetail.cost.cut import crossing_bytes, cut_seconds
from dovetail.cost.stage import comm_seconds, compute_seconds
from dovetail.spec import Plan, Problem, Stage
from dovetail.units import format_count, format_duration, format_usd

_PAGE_WIDTH, _LEFT, _BARS_HEIGHT = 13.0, 0.95, 2.7
_BADGE_INCHES = 0.22
_LABEL_ANGLE = 55
_FAR_BELOW = 2.5
"""Where the floor allows more than this many times the slowest stage, its line would flatten the bars: a note instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageFacts:
    """What the picture shows of one stage; a stage takes the longer of compute and communication with its cuts."""

    number: int
    stage: Stage
    colour: str
    compute_s: float
    comm_s: float
    cuts_s: float
    is_bottleneck: bool

    @property
    def seconds(self) -> float:
        """Seconds for one batch."""
        return max(self.compute_s, self.comm_s + self.cuts_s)

    @property
    def label(self) -> str:
        """The type and how many units of it."""
        return f"{shorten(self.stage.resource, 16)} x {self.stage.units}"


def draw_plan(problem: Problem, plan: Plan) -> Figure:
    """Return the picture of a plan: the layers as one strip coloured by type, and below it a bar for each stage.

    Raises PlanError where the plan does not fit the problem.
    """
    evaluation = evaluate(problem, plan.stages, split_stages=True)
    stages = _stage_facts(problem, plan.stages, evaluation.bottleneck)
    legend = _legend_rows(problem, plan.stages)
    legend_width = _legend_width(legend)
    strip_width = _PAGE_WIDTH - _LEFT - 0.75 - legend_width
    labels = _StageLabels.fit(stages, strip_width)
    names = _LayerNames.fit([layer.name for layer in problem.layers], strip_width)
    feet_height = 0.95
    bars_bottom = 0.2 + feet_height
    strip_bottom = bars_bottom + _BARS_HEIGHT + 0.75 + names.height_below
    strip_top = strip_bottom + names.strip_height + labels.height
    height = max(strip_top, bars_bottom + 0.26 * (len(legend) + 1)) + 1.1
    figure = new_figure(_PAGE_WIDTH, height)
    strip = axes_in_inches(figure, left=_LEFT, bottom=strip_bottom, width=strip_width, height=names.strip_height)
    _draw_strip(strip, stages, names, strip_width, len(problem.layers))
    labels.draw(strip, names.strip_height, strip_width, len(problem.layers))
    bars = axes_in_inches(figure, left=_LEFT, bottom=bars_bottom, width=strip_width, height=_BARS_HEIGHT)
    feet = axes_in_inches(figure, left=_LEFT, bottom=0.2, width=strip_width, height=feet_height)
    _draw_bars(bars, stages, problem, strip_width)
    _draw_feet(feet, stages, strip_width, feet_height)
    _write_key(figure, stages, left=_LEFT, bottom=bars_bottom + _BARS_HEIGHT + 0.12, width=strip_width)
    _draw_legend(figure, legend, left=_PAGE_WIDTH - 0.3 - legend_width, top=height - 1.05, width=legend_width)
    hours = plan.hours if plan.hours is not None else evaluation.hours
    write_title(figure, _title(plan, hours), _subtitle(problem, plan), left=0.4)
    if evaluation.violations:
        misses = "misses a demand: " + "; ".join(evaluation.violations)
        figure.text(
            1 - 0.3 / _PAGE_WIDTH,
            1 - 0.6 / height,
            shorten(misses, 100),
            ha="right",
            va="top",
            fontsize=10,
            fontweight="bold",
            color=ALARM,
            parse_math=False,
        )
    return figure


def plan_facts(problem: Problem, plan: Plan) -> FactTable:
    """Return the facts that `draw_plan` draws, one row a stage."""
    evaluation = evaluate(problem, plan.stages, split_stages=True)
    rows = []
    for fact in _stage_facts(problem, plan.stages, evaluation.bottleneck):
        first, last = problem.layers[fact.stage.first_layer].name, problem.layers[fact.stage.last_layer].name
        rows.append(
            (
                f"{fact.number}" + (" (bottleneck)" if fact.is_bottleneck else ""),
                first if first == last else f"{first} to {last}",
                fact.stage.resource,
                str(fact.stage.units),
                format_duration(fact.compute_s),
                format_duration(fact.comm_s),
                format_duration(fact.cuts_s),
                format_duration(fact.seconds),
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
    return f"{layers} in {stages} on {types}, planned by {plan.method} in {format_duration(plan.seconds)}"


def _stage_facts(problem: Problem, stages: Sequence[Stage], bottleneck: int) -> list[_StageFacts]:
    """Return what each stage takes for one batch, by the formulas of the cost model."""
    position_of = {resource.name: position for position, resource in enumerate(problem.resources)}
    facts = []
    for position, stage in enumerate(stages):
        times = [layer.on[stage.resource] for layer in problem.layers[stage.first_layer : stage.last_layer + 1]]
        facts.append(
            _StageFacts(
                number=position + 1,
                stage=stage,
                colour=type_colour(position_of[stage.resource]),
                compute_s=compute_seconds(times, units=stage.units),
                comm_s=comm_seconds(times, units=stage.units),
                cuts_s=sum(_cut(problem, stages, left, stage.units) for left in (position - 1, position)),
                is_bottleneck=position == bottleneck,
            )
        )
    return facts


def _cut(problem: Problem, stages: Sequence[Stage], left: int, units: int) -> float:
    """Return what the cut between stage `left` and the next adds to a stage of `units`; nothing where there is none."""
    if not 0 <= left < len(stages) - 1:
        return 0.0
    upstream, downstream = stages[left], stages[left + 1]
    forward = problem.link(upstream.resource, downstream.resource)
    backward = problem.link(downstream.resource, upstream.resource)
    if forward is None or backward is None:
        return 0.0
    payload = crossing_bytes(problem, upstream.last_layer)
    return cut_seconds(payload, forward=forward, backward=backward, units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerNames:
    """How the layers' names are written: in their cells where all fit, below the strip at an angle where not."""

    names: tuple[str, ...]
    in_cells: bool
    stride: int
    strip_height: float
    height_below: float

    @classmethod
    def fit(cls, names: Sequence[str], strip_width: float) -> _LayerNames:
        """Choose the way that shows the most names without two of them touching."""
        short = tuple(shorten(name, 20) for name in names)
        cell_width = strip_width / len(short)
        if max(text_width_inches(name, 9.5) for name in short) + 0.12 <= cell_width:
            return cls(names=short, in_cells=True, stride=1, strip_height=0.62, height_below=0.0)
        stride = 1 if cell_width >= 0.2 else math.ceil(0.3 / cell_width)
        longest = max(text_width_inches(name, 8.5) for name in short)
        below = longest * math.sin(math.radians(_LABEL_ANGLE)) + 0.22
        return cls(names=short, in_cells=False, stride=stride, strip_height=0.5, height_below=below)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageLabels:
    """The numbered labels above the strip: upright over their brackets where they fit, leaning where not."""

    stages: tuple[_StageFacts, ...]
    labelled: tuple[_StageFacts, ...]
    widths: tuple[float, ...]
    leaning: bool
    height: float

    @classmethod
    def fit(cls, stages: Sequence[_StageFacts], strip_width: float) -> _StageLabels:
        """Choose upright labels where there is room for all, else leaning ones for as many stages as have room."""
        widths = [text_width_inches(fact.label, 10, "bold") + 0.2 for fact in stages]
        if sum(widths) <= strip_width:
            return cls(
                stages=tuple(stages), labelled=tuple(stages), widths=tuple(widths), leaning=False, height=0.85
            )
        room = int(strip_width / (_BADGE_INCHES + 0.02))
        largest = sorted(stages, key=lambda fact: fact.stage.first_layer - fact.stage.last_layer)[:room]
        labelled = tuple(sorted(largest, key=lambda fact: fact.number))
        longest = max(text_width_inches(fact.label, 8.5) for fact in labelled)
        return cls(
            stages=tuple(stages),
            labelled=labelled,
            widths=(_BADGE_INCHES + 0.02,) * len(labelled),
            leaning=True,
            height=0.85 + longest * math.sin(math.radians(_LABEL_ANGLE)),
        )

    def draw(self, axes: Axes, strip_height: float, strip_width: float, num_layers: int) -> None:
        """Draw a bracket over each stage, and a numbered badge with its label joined to it."""
        layers_per_inch = num_layers / strip_width
        foot, rail, badge = strip_height + 0.07, strip_height + 0.15, strip_height + (0.5 if self.leaning else 0.42)
        inset = min(0.03 * layers_per_inch, 0.2)
        for fact in self.stages:
            left, right = fact.stage.first_layer + inset, fact.stage.last_layer + 1 - inset
            axes.plot(
                [left, left, right, right],
                [foot, rail, rail, foot],
                color=fact.colour,
                linewidth=1.6,
                clip_on=False,
                solid_joinstyle="miter",
            )
        middles = [(fact.stage.first_layer + fact.stage.last_layer + 1) / 2 for fact in self.labelled]
        places = spread_apart([middle / layers_per_inch for middle in middles], self.widths, low=0, high=strip_width)
        for fact, middle, place in zip(self.labelled, middles, places, strict=True):
            at = place * layers_per_inch
            axes.plot([middle, at], [rail, badge], color=fact.colour, linewidth=1.0, clip_on=False)
            _draw_badge(axes, at, badge, fact)
            axes.text(
                at,
                badge + 0.15,
                fact.label,
                ha="left" if self.leaning else "center",
                va="bottom",
                rotation=_LABEL_ANGLE if self.leaning else 0,
                rotation_mode="anchor",
                fontsize=8.5 if self.leaning else 10,
                fontweight="normal" if self.leaning else "bold",
                color=INK,
                parse_math=False,
            )


def _draw_badge(axes: Axes, x: float, y: float, fact: _StageFacts) -> None:
    """Draw a stage's number on a disc of its type's colour."""
    axes.plot([x], [y], "o", color=fact.colour, markersize=_BADGE_INCHES * 72 - 1, clip_on=False, zorder=3)
    axes.text(
        x,
        y,
        str(fact.number),
        ha="center",
        va="center_baseline",
        fontsize=8 if fact.number < 100 else 6.5,
        fontweight="bold",
        color=ink_on(fact.colour),
        zorder=4,
    )


def _draw_strip(axes: Axes, stages: Sequence[_StageFacts], names: _LayerNames, width: float, num_layers: int) -> None:
    """Draw one cell a layer in the colour of its type, wider gaps between stages, and the names."""
    axes.set_xlim(0, num_layers)
    axes.set_ylim(0, names.strip_height)
    cell_points = 72 * width / num_layers
    colours = [fact.colour for fact in stages for _ in range(fact.stage.first_layer, fact.stage.last_layer + 1)]
    axes.broken_barh(
        [(position, 1) for position in range(num_layers)],
        (0, names.strip_height),
        facecolors=colours,
        edgecolors=PAPER,
        linewidth=min(1.0, 0.16 * cell_points),
        clip_on=False,
        gid="layers",
    )
    for fact in stages[1:]:
        axes.axvline(fact.stage.first_layer, color=PAPER, linewidth=min(4.0, 0.6 * cell_points), clip_on=False)
    shown = [position for position in range(num_layers) if position % names.stride == 0]
    for position in shown:
        _write_layer_name(axes, names, position, colours[position])


def _write_layer_name(axes: Axes, names: _LayerNames, position: int, colour: str) -> None:
    """Write one layer's name in its cell, or below it at an angle with a tick up to its cell."""
    if names.in_cells:
        axes.text(
            position + 0.5,
            names.strip_height / 2,
            names.names[position],
            ha="center",
            va="center",
            fontsize=9.5,
            color=ink_on(colour),
            parse_math=False,
        )
        return
    axes.plot([position + 0.5] * 2, [-0.03, -0.09], color=MUTED, linewidth=0.7, clip_on=False)
    axes.text(
        position + 0.5,
        -0.12,
        names.names[position],
        ha="right",
        va="center",
        rotation=_LABEL_ANGLE,
        rotation_mode="anchor",
        fontsize=8.5,
        color=MUTED,
        parse_math=False,
    )


def _draw_bars(axes: Axes, stages: Sequence[_StageFacts], problem: Problem, width: float) -> None:
    """Draw what each stage takes: compute on the left of its bar, communication with its cuts on the right.

    The pale bar behind the two is as high as the higher one: the time of the stage.
    """
    show_scales(axes, grid="y")
    axes.set_xlim(-0.5, len(stages) - 0.5)
    axes.set_xticks([])
    bar_width = min(0.74, 1.1 * len(stages) / width)
    half = bar_width / 2
    for place, fact in enumerate(stages):
        left = place - half
        parts = (
            ("stage", left, 0.0, bar_width, fact.seconds, {"facecolor": fact.colour, "alpha": 0.16}),
            ("compute", left, 0.0, half, fact.compute_s, {"facecolor": fact.colour}),
            ("communication", place, 0.0, half, fact.comm_s, {"facecolor": fact.colour, "alpha": 0.5}),
            ("cuts", place, fact.comm_s, half, fact.cuts_s, _CUT_LOOK | {"edgecolor": fact.colour}),
        )
        for name, x, y, part_width, part_height, look in parts:
            axes.add_patch(Rectangle((x, y), part_width, part_height, gid=f"{name}-{fact.number}", **look))  # type: ignore[arg-type]
    slowest = max(fact.seconds for fact in stages)
    floor = problem.training.min_samples_per_s
    allowed = problem.training.batch / floor if floor > 0 else 0.0
    line_shows = 0 < allowed <= _FAR_BELOW * slowest
    top = max(slowest, allowed if line_shows else 0.0) or 1.0
    axes.set_ylim(0, 1.24 * top)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_duration(seconds) if seconds > 0 else "0"))
    worst = next(place for place, fact in enumerate(stages) if fact.is_bottleneck)
    _mark_bottleneck(axes, worst, stages[worst], bar_width, clear_of=allowed)
    if floor > 0:
        _draw_floor(axes, allowed, floor, line_shows=line_shows, on_the_right=worst < (len(stages) - 1) / 2)


_CUT_LOOK = {"facecolor": "none", "hatch": "//////", "linewidth": 0.0}


def _mark_bottleneck(axes: Axes, place: int, fact: _StageFacts, bar_width: float, *, clear_of: float) -> None:
    """Outline the slowest stage and name it, above the line `clear_of` where the two would meet."""
    axes.add_patch(
        Rectangle(
            (place - bar_width / 2, 0),
            bar_width,
            fact.seconds,
            facecolor="none",
            edgecolor=INK,
            linewidth=1.4,
            gid="bottleneck",
            zorder=4,
        )
    )
    top = axes.get_ylim()[1]
    base = clear_of if fact.seconds <= clear_of < fact.seconds + 0.14 * top else fact.seconds
    left, right = axes.get_xlim()
    across = (place - left) / (right - left)
    axes.annotate(
        f"bottleneck {format_duration(fact.seconds)}",
        (place, base),
        (0, 5),
        textcoords="offset points",
        ha="left" if across < 0.06 else "right" if across > 0.94 else "center",
        va="bottom",
        fontsize=10,
        fontweight="bold",
        color=INK,
        zorder=5,
    )


def _draw_floor(axes: Axes, allowed: float, floor: float, *, line_shows: bool, on_the_right: bool) -> None:
    """Draw the time that the throughput floor allows, with its label away from the bottleneck's."""
    words = f"{format_count(floor)} samples/s allow {format_duration(allowed)}"
    left, right = axes.get_xlim()
    if line_shows:
        axes.axhline(allowed, color=ALARM, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3, gid="floor")
    axes.annotate(
        f"the floor of {words}" + ("" if line_shows else ", far above this scale"),
        (right if on_the_right else left, allowed if line_shows else axes.get_ylim()[1]),
        (-2 if on_the_right else 2, 4 if line_shows else -2),
        textcoords="offset points",
        ha="right" if on_the_right else "left",
        va="bottom" if line_shows else "top",
        fontsize=9,
        color=ALARM,
        zorder=5,
    )


def _draw_feet(axes: Axes, stages: Sequence[_StageFacts], width: float, height: float) -> None:
    """Write below each bar its badge, what it runs on and what it takes, as far as there is room."""
    axes.set_xlim(-0.5, len(stages) - 0.5)
    axes.set_ylim(0, height)
    slot = width / len(stages)
    stride = math.ceil((_BADGE_INCHES + 0.03) / slot)
    times = [format_duration(fact.seconds) for fact in stages]
    rows = {"label": [fact.label for fact in stages], "time": times}
    fits = {row: max(text_width_inches(words, 9) for words in texts) + 0.1 <= slot for row, texts in rows.items()}
    for place, fact in enumerate(stages):
        if place % stride == 0:
            _draw_badge(axes, place, height - 0.2, fact)
        looks = {"va": "top", "ha": "center", "fontsize": 9, "fontweight": "bold" if fact.is_bottleneck else "normal"}
        if fits["time"]:
            axes.text(place, height - 0.36, times[place], color=INK, **looks)  # type: ignore[arg-type]
        elif stride == 1:
            axes.text(place, height - 0.36, times[place], color=INK, rotation=90, **looks)  # type: ignore[arg-type]
        if fits["time"] and fits["label"]:
            axes.text(place, height - 0.56, fact.label, color=MUTED, parse_math=False, **looks)  # type: ignore[arg-type]


def _write_key(figure: Figure, stages: Sequence[_StageFacts], *, left: float, bottom: float, width: float) -> None:
    """Write what the bars are, and what the parts of a bar mean."""
    axes = axes_in_inches(figure, left=left, bottom=bottom, width=width, height=0.25)
    axes.set_xlim(0, width)
    axes.set_ylim(0, 0.25)
    axes.text(0, 0.125, "Time of each stage for one batch", va="center", fontsize=11, fontweight="bold", color=INK)
    parts = [("compute", {"facecolor": MUTED}), ("communication", {"facecolor": MUTED, "alpha": 0.5})]
    if any(fact.cuts_s > 0 for fact in stages):
        parts.append(("cuts between stages", _CUT_LOOK | {"edgecolor": MUTED}))
    x = width
    for name, look in reversed(parts):
        axes.text(x, 0.125, name, ha="right", va="center", fontsize=9.5, color=MUTED)
        x -= text_width_inches(name, 9.5) + 0.3
        axes.add_patch(Rectangle((x, 0.055), 0.22, 0.14, **look))  # type: ignore[arg-type]
        x -= 0.2


def _legend_rows(problem: Problem, stages: Sequence[Stage]) -> list[tuple[str, str, str, str]]:
    """Return (colour, name, units, price) for each type the plan uses, then one row for those it does not."""
    units: Counter[str] = Counter()
    for stage in stages:
        units[stage.resource] += stage.units
    rows = [
        (type_colour(position), shorten(resource.name, 18), f"{units[resource.name]:,}", _price(resource.price_per_hour))
        for position, resource in enumerate(problem.resources)
        if units[resource.name]
    ]
    unused = len(problem.resources) - len(rows)
    if unused:
        rows.append(("", f"{unused} other type{'s' if unused > 1 else ''} not used", "", ""))
    return rows


def _price(price_per_hour: float) -> str:
    """Return the price of a unit and hour."""
    return f"{format_usd(price_per_hour)}/h"


def _legend_width(rows: Sequence[tuple[str, str, str, str]]) -> float:
    """Return the inches that the columns of the legend take side by side."""
    names, units, prices = (
        max(text_width_inches(row[column], 9.5) for row in [*rows, ("", "type", "units", "price")]) for column in (1, 2, 3)
    )
    return 0.26 + names + 0.25 + units + 0.25 + prices


def _draw_legend(
    figure: Figure, rows: Sequence[tuple[str, str, str, str]], *, left: float, top: float, width: float
) -> None:
    """Write the types as a small table: name, units used and price."""
    row_height = 0.26
    height = row_height * (len(rows) + 1)
    axes = axes_in_inches(figure, left=left, bottom=top - height, width=width, height=height)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    units_right = width - 0.25 - max(text_width_inches(price, 9.5) for *_, price in [*rows, ("", "", "", "price")])
    for place, (colour, name, units, price) in enumerate([("", "type", "units", "price"), *rows]):
        y = (place + 0.5) * row_height
        looks = {"va": "center_baseline", "fontsize": 9.5, "color": INK if colour else MUTED, "parse_math": False}
        if colour:
            axes.add_patch(Rectangle((0, y - 0.075), 0.16, 0.15, facecolor=colour))
        axes.text(0.26 if colour or not place else 0, y, name, ha="left", **looks)  # type: ignore[arg-type]
        axes.text(units_right, y, units, ha="right", **looks)  # type: ignore[arg-type]
        axes.text(width, y, price, ha="right", **looks)  # type: ignore[arg-type]
    axes.plot([0, width], [row_height, row_height], color=FAINT, linewidth=0.8)
