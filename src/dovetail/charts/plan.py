"""The picture of a plan: which layers run where, and what each stage takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    QUIET,
    FactTable,
    axes_in_inches,
    ink_on,
    new_figure,
    shorten,
    shorten_to,
    show_scales,
    spread_apart,
    text_width_inches,
    type_colour,
    write,
    write_title,
)
from dovetail.cost import evaluate
from dovetail.cost.cut import crossing_bytes, cut_seconds
from dovetail.cost.stage import comm_seconds, compute_seconds
from dovetail.spec import Plan, Problem, Stage, Training
from dovetail.units import format_count, format_duration, format_usd

_PAGE_WIDTH, _LEFT, _BARS_HEIGHT, _FEET_HEIGHT = 13.0, 0.95, 2.7, 0.95
_BADGE_INCHES = 0.22
_LABEL_ANGLE = 55
_LONGEST_LEANING = 1.5
_FAR_BELOW = 2.5
"""Where the floor allows over this many times the slowest stage, its line would flatten the bars: a note stands in."""


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
    legend = _Legend.fit(problem, plan.stages)
    width = _PAGE_WIDTH - _LEFT - (0.75 + legend.width if legend.is_beside else 0.5)
    labels = _StageLabels.fit(stages, width)
    names = _LayerNames.fit([layer.name for layer in problem.layers], width)
    feet_bottom = 0.2 if legend.is_beside else legend.height + 0.45
    bars_bottom = feet_bottom + _FEET_HEIGHT
    key_bottom = bars_bottom + _BARS_HEIGHT + 0.12
    strip_bottom = key_bottom + 0.63 + names.height_below
    height = max(strip_bottom + names.strip_height + labels.height, legend.height + 0.2) + 1.1
    figure = new_figure(_PAGE_WIDTH, height)
    strip = axes_in_inches(figure, left=_LEFT, bottom=strip_bottom, width=width, height=names.strip_height)
    _draw_strip(strip, stages, names, width, len(problem.layers))
    labels.draw(strip, names.strip_height, width, len(problem.layers))
    _write_key(axes_in_inches(figure, left=_LEFT, bottom=key_bottom, width=width, height=0.25), stages, width)
    bars = axes_in_inches(figure, left=_LEFT, bottom=bars_bottom, width=width, height=_BARS_HEIGHT)
    _draw_bars(bars, stages, problem.training, width)
    _draw_feet(axes_in_inches(figure, left=_LEFT, bottom=feet_bottom, width=width, height=_FEET_HEIGHT), stages, width)
    if legend.is_beside:
        legend.draw(figure, left=_PAGE_WIDTH - 0.3 - legend.width, top=height - 1.05)
    else:
        legend.draw(figure, left=_LEFT, top=legend.height + 0.25)
    hours = plan.hours if plan.hours is not None else evaluation.hours
    write_title(figure, _title(plan, hours), _subtitle(problem, plan), left=0.4)
    if evaluation.violations:
        misses = "misses a demand: " + "; ".join(evaluation.violations)
        figure.text(
            1 - 0.3 / _PAGE_WIDTH,
            1 - 0.6 / height,
            shorten(misses, 84),
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
    return f"{layers} in {stages} on {types}, planned by {shorten(plan.method, 32)} in {format_duration(plan.seconds)}"


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
        short = tuple(shorten_to(name, _LONGEST_LEANING, 8.5) for name in short)
        longest = max(text_width_inches(name, 8.5) for name in short)
        below = longest * math.sin(math.radians(_LABEL_ANGLE)) + 0.22
        return cls(names=short, in_cells=False, stride=stride, strip_height=0.5, height_below=below)


_UPRIGHT: dict[str, Any] = {"size": 10, "ha": "center", "va": "bottom", "fontweight": "bold"}
_LEANING: dict[str, Any] = {
    "size": 8.5,
    "ha": "left",
    "va": "bottom",
    "rotation": _LABEL_ANGLE,
    "rotation_mode": "anchor",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageLabels:
    """The numbered labels above the strip: upright over their brackets where they fit, leaning where not."""

    stages: tuple[_StageFacts, ...]
    labelled: tuple[_StageFacts, ...]
    widths: tuple[float, ...]
    leaning: bool
    right_edge: float
    height: float

    @classmethod
    def fit(cls, stages: Sequence[_StageFacts], strip_width: float) -> _StageLabels:
        """Choose upright labels where there is room for all, else leaning ones for as many stages as have room."""
        widths = [text_width_inches(fact.label, 10, "bold") + 0.2 for fact in stages]
        if sum(widths) <= strip_width:
            return cls(
                stages=tuple(stages),
                labelled=tuple(stages),
                widths=tuple(widths),
                leaning=False,
                right_edge=strip_width,
                height=0.85,
            )
        longest = max(text_width_inches(fact.label, 8.5) for fact in stages)
        right_edge = strip_width - max(0.0, longest * math.cos(math.radians(_LABEL_ANGLE)) - 0.35)
        room = int(right_edge / (_BADGE_INCHES + 0.02))
        largest = sorted(stages, key=lambda fact: fact.stage.first_layer - fact.stage.last_layer)[:room]
        labelled = tuple(sorted(largest, key=lambda fact: fact.number))
        return cls(
            stages=tuple(stages),
            labelled=labelled,
            widths=(_BADGE_INCHES + 0.02,) * len(labelled),
            leaning=True,
            right_edge=right_edge,
            height=0.85 + longest * math.sin(math.radians(_LABEL_ANGLE)),
        )

    def draw(self, axes: Axes, strip_height: float, strip_width: float, num_layers: int) -> None:
        """Draw a bracket over each stage, and a numbered badge with its label joined to it."""
        layers_per_inch = num_layers / strip_width
        foot, rail, badge = strip_height + 0.07, strip_height + 0.15, strip_height + (0.5 if self.leaning else 0.42)
        for fact in self.stages:
            num_stage_layers = fact.stage.last_layer + 1 - fact.stage.first_layer
            inset = min(0.03 * layers_per_inch, 0.3 * num_stage_layers)
            left, right = fact.stage.first_layer + inset, fact.stage.last_layer + 1 - inset
            axes.plot(
                [left, left, right, right],
                [foot, rail, rail, foot],
                color=MUTED,
                linewidth=1.2,
                clip_on=False,
                solid_joinstyle="miter",
            )
        middles = [(fact.stage.first_layer + fact.stage.last_layer + 1) / 2 for fact in self.labelled]
        places = spread_apart(
            [middle / layers_per_inch for middle in middles], self.widths, low=0, high=self.right_edge
        )
        for fact, middle, place in zip(self.labelled, middles, places, strict=True):
            at = place * layers_per_inch
            axes.plot([middle, at], [rail, badge], color=MUTED, linewidth=0.8, clip_on=False)
            _draw_badge(axes, at, badge, fact)
            write(axes, at, badge + 0.15, fact.label, **(_LEANING if self.leaning else _UPRIGHT))


def _draw_badge(axes: Axes, x: float, y: float, fact: _StageFacts) -> None:
    """Draw a stage's number on a disc of its type's colour."""
    axes.plot([x], [y], "o", color=fact.colour, markersize=_BADGE_INCHES * 72 - 1, clip_on=False, zorder=3)
    looks = {"ha": "center", "va": "center_baseline", "fontweight": "bold", "zorder": 4}
    write(axes, x, y, str(fact.number), size=8 if fact.number < 100 else 6.5, colour=ink_on(fact.colour), **looks)


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
        middle = names.strip_height / 2
        write(axes, position + 0.5, middle, names.names[position], colour=ink_on(colour), ha="center", va="center")
        return
    axes.plot([position + 0.5] * 2, [-0.03, -0.09], color=MUTED, linewidth=0.7, clip_on=False)
    looks = {"ha": "right", "va": "center", "rotation": _LABEL_ANGLE, "rotation_mode": "anchor"}
    write(axes, position + 0.5, -0.12, names.names[position], size=8.5, colour=MUTED, **looks)


def _draw_bars(axes: Axes, stages: Sequence[_StageFacts], training: Training, width: float) -> None:
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
            ("ground", left, 0.0, bar_width, fact.seconds, {"facecolor": PAPER, "edgecolor": QUIET, "linewidth": 0.5}),
            ("stage", left, 0.0, bar_width, fact.seconds, {"facecolor": fact.colour, "alpha": 0.16}),
            ("compute", left, 0.0, half, fact.compute_s, {"facecolor": fact.colour}),
            ("communication", place, 0.0, half, fact.comm_s, {"facecolor": fact.colour, "alpha": 0.5}),
            ("cuts", place, fact.comm_s, half, fact.cuts_s, _CUT_LOOK | {"edgecolor": fact.colour}),
        )
        for name, x, y, part_width, part_height, look in parts:
            axes.add_patch(Rectangle((x, y), part_width, part_height, gid=f"{name}-{fact.number}", **look))
    slowest = max(fact.seconds for fact in stages)
    floor = training.min_samples_per_s
    allowed = training.batch / floor if floor > 0 else 0.0
    line_shows = 0 < allowed <= _FAR_BELOW * slowest
    top = max(slowest, allowed if line_shows else 0.0) or 1.0
    axes.set_ylim(0, 1.24 * top)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    scale, unit = next(((scale, unit) for scale, unit in ((1.0, "s"), (1e-3, "ms")) if top >= scale), (1e-6, "us"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / scale:g} {unit}" if seconds else "0"))
    worst = next(place for place, fact in enumerate(stages) if fact.is_bottleneck)
    _mark_bottleneck(axes, worst, stages[worst], bar_width, clear_of=allowed)
    if floor > 0:
        _draw_floor(axes, allowed, floor, line_shows=line_shows, on_the_right=worst < (len(stages) - 1) / 2)


_ON_PAPER = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1}
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
            linewidth=1.4 if axes.get_xlim()[1] < 60 else 0.6,
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
        bbox=_ON_PAPER,
        zorder=5,
    )


def _draw_floor(axes: Axes, allowed: float, floor: float, *, line_shows: bool, on_the_right: bool) -> None:
    """Draw the time that the throughput floor allows, with its label away from the bottleneck's."""
    left, right = axes.get_xlim()
    if line_shows:
        axes.axhline(allowed, color=ALARM, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3, gid="floor")
    axes.annotate(
        f"floor of {format_count(floor)} samples/s: at most {format_duration(allowed)}"
        + ("" if line_shows else ", far above this scale"),
        (right if on_the_right else left, allowed if line_shows else axes.get_ylim()[1]),
        (-2 if on_the_right else 2, 4 if line_shows else -2),
        textcoords="offset points",
        ha="right" if on_the_right else "left",
        va="bottom" if line_shows else "top",
        fontsize=9,
        color=ALARM,
        bbox=_ON_PAPER,
        zorder=5,
    )


def _draw_feet(axes: Axes, stages: Sequence[_StageFacts], width: float) -> None:
    """Write below each bar its badge, what it runs on and what it takes, as far as there is room."""
    axes.set_xlim(-0.5, len(stages) - 0.5)
    axes.set_ylim(-_FEET_HEIGHT, 0)
    slot = width / len(stages)
    stride = math.ceil((_BADGE_INCHES + 0.03) / slot)
    times = [format_duration(fact.seconds) for fact in stages]
    rows = {"label": [fact.label for fact in stages], "time": times}
    fits = {row: max(text_width_inches(words, 9) for words in texts) + 0.1 <= slot for row, texts in rows.items()}
    for place, fact in enumerate(stages):
        if place % stride == 0:
            _draw_badge(axes, place, -0.2, fact)
        if fits["time"] or stride == 1:
            words = write(axes, place, -0.36, times[place], size=9, ha="center", va="top")
            words.set_rotation(0 if fits["time"] else 90)
            words.set_fontweight("bold" if fact.is_bottleneck else "normal")
        if fits["time"] and fits["label"]:
            write(axes, place, -0.56, fact.label, size=9, colour=MUTED, ha="center", va="top")


def _write_key(axes: Axes, stages: Sequence[_StageFacts], width: float) -> None:
    """Write what the bars are, and what the parts of a bar mean."""
    axes.set_xlim(0, width)
    axes.set_ylim(0, 0.25)
    write(axes, 0, 0.125, "Time of each stage for one batch", size=11, va="center", fontweight="bold")
    parts = [("compute", {"facecolor": MUTED}), ("communication", {"facecolor": MUTED, "alpha": 0.5})]
    if any(fact.cuts_s > 0 for fact in stages):
        parts.append(("cuts between stages", _CUT_LOOK | {"edgecolor": MUTED}))
    x = width
    for name, look in reversed(parts):
        write(axes, x, 0.125, name, colour=MUTED, ha="right", va="center")
        x -= text_width_inches(name, 9.5) + 0.3
        axes.add_patch(Rectangle((x, 0.055), 0.22, 0.14, **look))  # type: ignore[arg-type]
        x -= 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _LegendRow:
    """One type in the legend; a row without colour is a remark."""

    colour: str
    name: str
    units: str
    price: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Legend:
    """The types as a small table of name, units used and price: beside the chart, or below it where there are many."""

    rows: tuple[_LegendRow, ...]
    units_right: float
    width: float
    num_columns: int

    @classmethod
    def fit(cls, problem: Problem, stages: Sequence[Stage]) -> _Legend:
        """List the types that the stages use, and count those they do not."""
        rows = _legend_rows(problem, stages)
        measured = [_LEGEND_HEADER, *(row for row in rows if row.colour)]
        names, units, prices = (
            max(text_width_inches(words, 9.5) for words in column)
            for column in zip(*((row.name, row.units, row.price) for row in measured), strict=True)
        )
        units_right = 0.26 + names + 0.25 + units
        width = units_right + 0.25 + prices
        columns = 1 if len(rows) <= _MOST_ROWS_BESIDE else int((_PAGE_WIDTH - _LEFT) / (width + 0.45))
        return cls(rows=tuple(rows), units_right=units_right, width=width, num_columns=columns)

    @property
    def is_beside(self) -> bool:
        """Whether it stands to the right of the chart."""
        return len(self.rows) <= _MOST_ROWS_BESIDE

    @property
    def rows_per_column(self) -> int:
        """The rows of each column but the last, the header left out."""
        return math.ceil(len(self.rows) / self.num_columns)

    @property
    def height(self) -> float:
        """Inches, the header included."""
        return _LEGEND_ROW_INCHES * (self.rows_per_column + 1)

    def draw(self, figure: Figure, *, left: float, top: float) -> None:
        """Draw the columns from `left` on, down from `top`."""
        for column in range(self.num_columns):
            rows = self.rows[column * self.rows_per_column : (column + 1) * self.rows_per_column]
            if rows:
                self._draw_column(figure, rows, left=left + column * (self.width + 0.45), top=top)

    def _draw_column(self, figure: Figure, rows: Sequence[_LegendRow], *, left: float, top: float) -> None:
        """Draw one column with its header."""
        axes = axes_in_inches(figure, left=left, bottom=top - self.height, width=self.width, height=self.height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.height, 0)
        axes.plot([0, self.width], [_LEGEND_ROW_INCHES] * 2, color=FAINT, linewidth=0.8)
        for place, row in enumerate((_LEGEND_HEADER, *rows)):
            y = (place + 0.5) * _LEGEND_ROW_INCHES
            colour = INK if row.colour else MUTED
            if row.colour:
                axes.add_patch(Rectangle((0, y - 0.075), 0.16, 0.15, facecolor=row.colour))
            cells = ((0.26, row.name, "left"), (self.units_right, row.units, "right"), (self.width, row.price, "right"))
            for x, words, side in cells:
                write(axes, x, y, words, colour=colour, ha=side, va="center_baseline")


_LEGEND_HEADER = _LegendRow(colour="", name="type", units="units", price="price")
_LEGEND_ROW_INCHES = 0.26
_MOST_ROWS_BESIDE = 22


def _legend_rows(problem: Problem, stages: Sequence[Stage]) -> list[_LegendRow]:
    """Return a row for each type in use, then one that counts the others."""
    units: Counter[str] = Counter()
    for stage in stages:
        units[stage.resource] += stage.units
    rows = [
        _LegendRow(
            colour=type_colour(position),
            name=shorten(resource.name, 18),
            units=f"{units[resource.name]:,}",
            price=f"{format_usd(resource.price_per_hour)}/h",
        )
        for position, resource in enumerate(problem.resources)
        if units[resource.name]
    ]
    unused = len(problem.resources) - len(rows)
    if unused:
        rows.append(_LegendRow(colour="", name=f"{unused} more not used", units="", price=""))
    return rows
