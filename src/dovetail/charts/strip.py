"""The layers of a plan as one strip of cells, bracketed into stages with a numbered label above each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from dovetail.charts.labels import shorten, shorten_to, spread_apart, text_width_inches, write
from dovetail.charts.palette import MUTED, PAPER, ink_on
from dovetail.charts.stage import BADGE_INCHES, StageFacts, draw_badge

_ANGLE = 55
_LONGEST_LEANING = 1.5
_RAIL = 0.15
"""How far above the strip the brackets run."""

_LEANING: dict[str, Any] = {"size": 8.5, "rotation": _ANGLE, "rotation_mode": "anchor"}
_UPRIGHT: dict[str, Any] = {"size": 10, "ha": "center", "fontweight": "bold"}


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
