"""The types of a plan as a small table of name, units used and price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dovetail.charts.figure import axes_in_inches
from dovetail.charts.labels import shorten, text_width_inches, write
from dovetail.charts.palette import FAINT, INK, MUTED, type_colour
from dovetail.spec import Problem, Stage
from dovetail.units import format_usd

_ROW_INCHES, _GAP_INCHES = 0.26, 0.45
_MOST_ROWS_BESIDE = 22


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
