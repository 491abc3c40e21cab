"""The picture of a plan: which layers run where, and what each stage takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.page import FactTable
from dovetail.charts.style import (
    ALARM,
    FAINT,
    INK,
    MUTED,
    PAPER,
    QUIET,
    ink_on,
    shorten,
    shorten_to,
    show_scales,
    spread_apart,
    text_width_inches,
    type_colour,
    write,
)
from dovetail.cost import StageTimes, evaluate_plan, stage_times
from dovetail.spec import Plan, Problem, Stage, Training
from dovetail.units import format_count, format_duration, format_usd

BADGE_INCHES = 0.22

_ANGLE = 55
_LONGEST_LEANING = 1.5
_RAIL = 0.15
"""How far above the strip the brackets run."""
_LEANING: dict[str, Any] = {"size": 8.5, "rotation": _ANGLE, "rotation_mode": "anchor"}
_UPRIGHT: dict[str, Any] = {"size": 10, "ha": "center", "fontweight": "bold"}
_FEET_HEIGHT, _TIMES_HEIGHT, _KEY_GAP, _KEY_HEIGHT = 0.95, 2.7, 0.12, 0.25
BARS_HEIGHT = _FEET_HEIGHT + _TIMES_HEIGHT + _KEY_GAP + _KEY_HEIGHT
"""Inches, the key above and the words below the bars included."""
_FAR_BELOW = 2.5
"""Where the floor allows over this many times the slowest stage, its line would flatten the bars: a note stands in."""
_CUT_LOOK: dict[str, Any] = {"facecolor": "none", "hatch": "//////", "linewidth": 0.0}
_NOTE: dict[str, Any] = {
    "textcoords": "offset points",
    "bbox": {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1},
    "zorder": 5,
}
_ROW_INCHES, _GAP_INCHES = 0.26, 0.45
_MOST_ROWS_BESIDE = 22
_PAGE_WIDTH, _LEFT = 13.0, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """What the picture shows of one stage."""

    number: int
    stage: Stage
    colour: str
    times: StageTimes
    is_bottleneck: bool

    @property
    def layers(self) -> range:
        """The positions of its layers."""
        return range(self.stage.first_layer, self.stage.last_layer + 1)

    @property
    def label(self) -> str:
        """The type and how many units of it."""
        return f"{shorten(self.stage.resource, 16)} x {self.stage.units}"


def stage_facts(problem: Problem, stages: Sequence[Stage], bottleneck: int) -> list[StageFacts]:
    """Return what to show of each stage, in order."""
    colours = {resource.name: type_colour(position) for position, resource in enumerate(problem.resources)}
    return [
        StageFacts(
            number=position + 1,
            stage=stage,
            colour=colours[stage.resource],
            times=stage_times(problem, stages, position),
            is_bottleneck=position == bottleneck,
        )
        for position, stage in enumerate(stages)
    ]


def draw_badge(axes: Axes, x: float, y: float, fact: StageFacts) -> None:
    """Draw a stage's number on a disc of its type's colour."""
    axes.plot([x], [y], "o", color=fact.colour, markersize=BADGE_INCHES * 72 - 1, clip_on=False, zorder=3)
    looks = {"ha": "center", "va": "center_baseline", "fontweight": "bold", "zorder": 4}
    write(axes, x, y, str(fact.number), size=8 if fact.number < 100 else 6.5, colour=ink_on(fact.colour), **looks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One cell a layer; the names stand in their cells where all fit, below at an angle where not. In inches."""

    names: tuple[str, ...]
    stride: int
    width: float
    height: float
    height_below: float

    @classmethod
    def fit(cls, names: Sequence[str], width: float) -> Strip:
        """Choose the way that shows the most names without two of them touching."""
        short = tuple(shorten(name, 20) for name in names)
        cell_width = width / len(short)
        if max(text_width_inches(name, 9.5) for name in short) + 0.12 <= cell_width:
            return cls(names=short, stride=1, width=width, height=0.62, height_below=0.0)
        stride = 1 if cell_width >= 0.2 else math.ceil(0.3 / cell_width)
        short = tuple(shorten_to(name, _LONGEST_LEANING, 8.5) for name in short)
        longest = max(text_width_inches(name, 8.5) for name in short)
        below = longest * math.sin(math.radians(_ANGLE)) + 0.22
        return cls(names=short, stride=stride, width=width, height=0.5, height_below=below)

    @property
    def layers_per_inch(self) -> float:
        """How many cells an inch holds."""
        return len(self.names) / self.width

    def draw(self, axes: Axes, facts: Sequence[StageFacts]) -> None:
        """Draw the cells in the colours of their types, wider gaps and brackets between stages, and the names."""
        num_layers = len(self.names)
        axes.set_xlim(0, num_layers)
        axes.set_ylim(0, self.height)
        cell_points = 72 * self.width / num_layers
        colours = [fact.colour for fact in facts for _ in fact.layers]
        axes.broken_barh(
            [(position, 1) for position in range(num_layers)],
            (0, self.height),
            facecolors=colours,
            edgecolors=PAPER,
            linewidth=min(1.0, 0.16 * cell_points),
            clip_on=False,
            gid="layers",
        )
        for fact in facts[1:]:
            axes.axvline(fact.layers.start, color=PAPER, linewidth=min(4.0, 0.6 * cell_points), clip_on=False)
        for position in range(0, num_layers, self.stride):
            self._write_name(axes, position, colours[position])
        for fact in facts:
            self._draw_bracket(axes, fact.layers)

    def _write_name(self, axes: Axes, position: int, colour: str) -> None:
        """Write one layer's name in its cell, or below it at an angle with a tick up to its cell."""
        name, middle = self.names[position], position + 0.5
        if not self.height_below:
            write(axes, middle, self.height / 2, name, colour=ink_on(colour), ha="center", va="center")
            return
        axes.plot([middle, middle], [-0.03, -0.09], color=MUTED, linewidth=0.7, clip_on=False)
        write(axes, middle, -0.12, name, colour=MUTED, ha="right", va="center", **_LEANING)

    def _draw_bracket(self, axes: Axes, layers: range) -> None:
        """Draw a bracket over the layers of a stage."""
        inset = min(0.03 * self.layers_per_inch, 0.3 * len(layers))
        left, right = layers.start + inset, layers.stop - inset
        foot, rail = self.height + 0.07, self.height + _RAIL
        looks: dict[str, Any] = {"linewidth": 1.2, "solid_joinstyle": "miter", "clip_on": False}
        axes.plot([left, left, right, right], [foot, rail, rail, foot], color=MUTED, **looks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLabels:
    """The numbered labels above the strip: upright over their brackets where they fit, leaning where not. In inches."""

    labelled: tuple[StageFacts, ...]
    places: tuple[float, ...]
    leaning: bool
    height: float

    @classmethod
    def fit(cls, facts: Sequence[StageFacts], strip: Strip) -> StageLabels:
        """Choose upright labels where there is room for all, else leaning ones for as many stages as have room."""
        widths = [text_width_inches(fact.label, 10, "bold") + 0.2 for fact in facts]
        leaning = sum(widths) > strip.width
        right_edge, rise = strip.width, 0.0
        if leaning:
            longest = max(text_width_inches(fact.label, 8.5) for fact in facts)
            right_edge -= max(0.0, longest * math.cos(math.radians(_ANGLE)) - 0.35)
            rise = longest * math.sin(math.radians(_ANGLE))
            room = int(right_edge / (BADGE_INCHES + 0.02))
            largest = sorted(facts, key=lambda fact: -len(fact.layers))[:room]
            facts = sorted(largest, key=lambda fact: fact.number)
            widths = [BADGE_INCHES + 0.02] * len(facts)
        middles = [_middle(fact.layers) / strip.layers_per_inch for fact in facts]
        places = spread_apart(middles, widths, low=0, high=right_edge)
        return cls(labelled=tuple(facts), places=tuple(places), leaning=leaning, height=0.85 + rise)

    def draw(self, axes: Axes, strip: Strip) -> None:
        """Draw a numbered badge with its label for each stage, joined to its bracket."""
        rail, badge = strip.height + _RAIL, strip.height + (0.5 if self.leaning else 0.42)
        looks = _LEANING | {"ha": "left"} if self.leaning else _UPRIGHT
        for fact, place in zip(self.labelled, self.places, strict=True):
            at = place * strip.layers_per_inch
            axes.plot([_middle(fact.layers), at], [rail, badge], color=MUTED, linewidth=0.8, clip_on=False)
            draw_badge(axes, at, badge, fact)
            write(axes, at, badge + 0.15, fact.label, va="bottom", **looks)


def _middle(layers: range) -> float:
    """Return the middle of a stage on the strip."""
    return (layers.start + layers.stop) / 2


def draw_bars(
    figure: Figure, facts: Sequence[StageFacts], training: Training, *, left: float, bottom: float, width: float
) -> None:
    """Draw a bar for each stage, the key above them, and below each what it runs on."""
    times_bottom = bottom + _FEET_HEIGHT
    key_bottom = times_bottom + _TIMES_HEIGHT + _KEY_GAP
    _write_key(axes_in_inches(figure, left=left, bottom=key_bottom, width=width, height=_KEY_HEIGHT), facts, width)
    times = axes_in_inches(figure, left=left, bottom=times_bottom, width=width, height=_TIMES_HEIGHT)
    _draw_times(times, facts, training, width)
    _draw_feet(axes_in_inches(figure, left=left, bottom=bottom, width=width, height=_FEET_HEIGHT), facts, width)


def _write_key(axes: Axes, facts: Sequence[StageFacts], width: float) -> None:
    """Write what the bars are, and what the parts of a bar mean."""
    axes.set_xlim(0, width)
    axes.set_ylim(0, _KEY_HEIGHT)
    middle = _KEY_HEIGHT / 2
    write(axes, 0, middle, "Time of each stage for one batch", size=11, va="center", fontweight="bold")
    parts: dict[str, dict[str, Any]] = {"compute": {"facecolor": MUTED}}
    parts["communication"] = {"facecolor": MUTED, "alpha": 0.5}
    if any(fact.times.cut_s > 0 for fact in facts):
        parts["cuts between stages"] = _CUT_LOOK | {"edgecolor": MUTED}
    x = width
    for name, look in reversed(parts.items()):
        write(axes, x, middle, name, colour=MUTED, ha="right", va="center")
        x -= text_width_inches(name, 9.5) + 0.3
        axes.add_patch(Rectangle((x, 0.055), 0.22, 0.14, **look))
        x -= 0.2


def _draw_times(axes: Axes, facts: Sequence[StageFacts], training: Training, width: float) -> None:
    """Draw what each stage takes, on a scale that leaves room above, with the bottleneck and the floor."""
    slowest = max(fact.times.seconds for fact in facts)
    floor = training.min_samples_per_s
    allowed = training.batch / floor if floor > 0 else 0.0
    line_shows = 0 < allowed <= _FAR_BELOW * slowest
    top = max(slowest, allowed if line_shows else 0.0) or 1.0
    show_scales(axes, grid="y")
    axes.set_xlim(-0.5, len(facts) - 0.5)
    axes.set_ylim(0, 1.24 * top)
    axes.set_xticks([])
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    scale, unit = next(((scale, unit) for scale, unit in ((1.0, "s"), (1e-3, "ms")) if top >= scale), (1e-6, "us"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / scale:g} {unit}" if seconds else "0"))
    bar_width = min(0.74, 1.1 * len(facts) / width)
    for place, fact in enumerate(facts):
        _draw_bar(axes, place, fact, bar_width)
    worst = next(place for place, fact in enumerate(facts) if fact.is_bottleneck)
    _mark_bottleneck(axes, worst, facts[worst].times.seconds, bar_width, clear_of=allowed)
    if floor > 0:
        _draw_floor(axes, allowed, floor, line_shows=line_shows, on_the_right=worst < (len(facts) - 1) / 2)


def _draw_bar(axes: Axes, place: int, fact: StageFacts, width: float) -> None:
    """Draw what one stage takes: compute on the left of its bar, communication with its cuts on the right.

    The pale bar behind the two is as high as the higher one: the time of the stage.
    """
    times, half, fill = fact.times, width / 2, {"facecolor": fact.colour}
    left = place - half
    ground = {"facecolor": PAPER, "edgecolor": QUIET, "linewidth": 0.5}
    parts: tuple[tuple[str, float, float, float, float, dict[str, Any]], ...] = (
        ("ground", left, 0.0, width, times.seconds, ground),
        ("stage", left, 0.0, width, times.seconds, fill | {"alpha": 0.16}),
        ("compute", left, 0.0, half, times.compute_s, fill),
        ("communication", place, 0.0, half, times.comm_s, fill | {"alpha": 0.5}),
        ("cuts", place, times.comm_s, half, times.cut_s, _CUT_LOOK | {"edgecolor": fact.colour}),
    )
    for name, x, y, part_width, height, look in parts:
        axes.add_patch(Rectangle((x, y), part_width, height, gid=f"{name}-{fact.number}", **look))


def _mark_bottleneck(axes: Axes, place: int, seconds: float, bar_width: float, *, clear_of: float) -> None:
    """Outline the slowest stage and name it, above the line `clear_of` where the two would meet."""
    (left, right), top = axes.get_xlim(), axes.get_ylim()[1]
    looks: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.4 if right < 60 else 0.6}
    axes.add_patch(Rectangle((place - bar_width / 2, 0), bar_width, seconds, gid="bottleneck", zorder=4, **looks))
    base = clear_of if seconds <= clear_of < seconds + 0.14 * top else seconds
    across = (place - left) / (right - left)
    side = "left" if across < 0.06 else "right" if across > 0.94 else "center"
    words: dict[str, Any] = {"ha": side, "va": "bottom", "fontsize": 10, "fontweight": "bold", "color": INK}
    axes.annotate(f"bottleneck {format_duration(seconds)}", (place, base), (0, 5), **words, **_NOTE)


def _draw_floor(axes: Axes, allowed: float, floor: float, *, line_shows: bool, on_the_right: bool) -> None:
    """Draw the time that the throughput floor allows, with its label away from the bottleneck's."""
    if line_shows:
        axes.axhline(allowed, color=ALARM, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3, gid="floor")
    axes.annotate(
        f"floor of {format_count(floor)} samples/s: at most {format_duration(allowed)}"
        + ("" if line_shows else ", far above this scale"),
        (axes.get_xlim()[on_the_right], allowed if line_shows else axes.get_ylim()[1]),
        (-2 if on_the_right else 2, 4 if line_shows else -2),
        ha="right" if on_the_right else "left",
        va="bottom" if line_shows else "top",
        fontsize=9,
        color=ALARM,
        **_NOTE,
    )


def _draw_feet(axes: Axes, facts: Sequence[StageFacts], width: float) -> None:
    """Write below each bar its badge, what it takes and what it runs on, as far as there is room."""
    axes.set_xlim(-0.5, len(facts) - 0.5)
    axes.set_ylim(-_FEET_HEIGHT, 0)
    slot = width / len(facts)
    stride = math.ceil((BADGE_INCHES + 0.03) / slot)
    times, labels = [format_duration(fact.times.seconds) for fact in facts], [fact.label for fact in facts]
    times_fit, labels_fit = (max(text_width_inches(cell, 9) for cell in row) + 0.1 <= slot for row in (times, labels))
    for place, fact in enumerate(facts):
        if place % stride == 0:
            draw_badge(axes, place, -0.2, fact)
        if times_fit or stride == 1:
            weight, angle = "bold" if fact.is_bottleneck else "normal", 0 if times_fit else 90
            write(axes, place, -0.36, times[place], size=9, ha="center", va="top", fontweight=weight, rotation=angle)
        if times_fit and labels_fit:
            write(axes, place, -0.56, labels[place], size=9, colour=MUTED, ha="center", va="top")


class _Row(NamedTuple):
    """One type; a row without colour is a remark."""

    colour: str
    name: str
    units: str
    price: str


_HEADER = _Row("", "type", "units", "price")


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """The types in use: one column beside the chart, or several below it where there are many. In inches."""

    rows: tuple[_Row, ...]
    units_right: float
    width: float
    num_columns: int

    @classmethod
    def fit(cls, problem: Problem, stages: Sequence[Stage], page_width: float) -> Legend:
        """List the types that the stages use, and count those they do not."""
        rows = _rows(problem, stages)
        _, *columns = zip(_HEADER, *(row for row in rows if row.colour), strict=True)
        names, units, prices = (max(text_width_inches(cell, 9.5) for cell in column) for column in columns)
        units_right = 0.26 + names + 0.25 + units
        width = units_right + 0.25 + prices
        num_columns = 1 if len(rows) <= _MOST_ROWS_BESIDE else int(page_width / (width + _GAP_INCHES))
        return cls(rows=tuple(rows), units_right=units_right, width=width, num_columns=num_columns)

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
        """The height of each column, the header included."""
        return _ROW_INCHES * (self.rows_per_column + 1)

    def draw(self, figure: Figure, *, left: float, top: float) -> None:
        """Draw the columns from `left` on, down from `top`."""
        for column, start in enumerate(range(0, len(self.rows), self.rows_per_column)):
            rows = self.rows[start : start + self.rows_per_column]
            self._draw_column(figure, rows, left=left + column * (self.width + _GAP_INCHES), top=top)

    def _draw_column(self, figure: Figure, rows: Sequence[_Row], *, left: float, top: float) -> None:
        """Draw one column with its header."""
        axes = axes_in_inches(figure, left=left, bottom=top - self.height, width=self.width, height=self.height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.height, 0)
        axes.plot([0, self.width], [_ROW_INCHES, _ROW_INCHES], color=FAINT, linewidth=0.8)
        for place, row in enumerate((_HEADER, *rows)):
            y = (place + 0.5) * _ROW_INCHES
            if row.colour:
                axes.add_patch(Rectangle((0, y - 0.075), 0.16, 0.15, facecolor=row.colour))
            cells = ((0.26, row.name, "left"), (self.units_right, row.units, "right"), (self.width, row.price, "right"))
            for x, words, side in cells:
                write(axes, x, y, words, colour=INK if row.colour else MUTED, ha=side, va="center_baseline")


def _rows(problem: Problem, stages: Sequence[Stage]) -> list[_Row]:
    """Return a row for each type in use, then one that counts the others."""
    rows = []
    for position, resource in enumerate(problem.resources):
        units = sum(stage.units for stage in stages if stage.resource == resource.name)
        if units:
            price = f"{format_usd(resource.price_per_hour)}/h"
            rows.append(_Row(type_colour(position), shorten(resource.name, 18), f"{units:,}", price))
    unused = len(problem.resources) - len(rows)
    return [*rows, _Row("", f"{unused} more not used", "", "")] if unused else rows


def draw_plan(problem: Problem, plan: Plan) -> Figure:
    """Return the picture of a plan: the layers as one strip coloured by type, and below it a bar for each stage.

    Raises PlanError where the plan does not fit the problem.
    """
    evaluation = evaluate_plan(problem, plan, split_stages=True)
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
    evaluation = evaluate_plan(problem, plan, split_stages=True)
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
