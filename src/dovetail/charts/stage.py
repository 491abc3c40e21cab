"""One stage as the picture of a plan shows it: a number on a disc, a colour, a label and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from dovetail.charts.labels import shorten, write
from dovetail.charts.palette import ink_on, type_colour
from dovetail.cost import StageTimes, stage_times
from dovetail.spec import Problem, Stage

BADGE_INCHES = 0.22


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
