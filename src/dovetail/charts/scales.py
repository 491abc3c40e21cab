"""The scales of charts: quiet lines, ticks of money, and when a scale is logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from dovetail.charts.palette import FAINT, MUTED
from dovetail.units import format_usd


def show_scales(axes: Axes, *, grid: str) -> None:
    """Give axes quiet tick labels, a base line and grid lines along `grid`: "x", "y" or "both"."""
    axes.set_axis_on()
    axes.tick_params(which="both", colors=MUTED, labelsize=9, length=0)
    axes.set_axisbelow(True)
    axes.grid(visible=True, which="major", axis=grid, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)


def usd_ticks() -> FuncFormatter:
    """Return a formatter for an axis of money, without cents that are all zero."""
    return FuncFormatter(lambda amount, _: format_usd(amount).removesuffix(".00") if amount else "$0")


def spans_over(values: Sequence[float], times: float) -> bool:
    """Return whether the largest value is more than `times` the smallest, so that a log scale is called for."""
    return min(values) > 0 and max(values) / min(values) > times


def log_ticks(values: Sequence[float]) -> LogLocator:
    """Return ticks for a log scale: powers of ten where the values span many, more between them where they do not."""
    if not spans_over(values, 4):
        return LogLocator(subs=[step / 2 for step in range(2, 20)])
    return LogLocator(subs=[1.0] if spans_over(values, 300) else [1.0, 2.0, 5.0])


def finite_and_positive(value: float) -> bool:
    """Return whether a value has a place on a log scale."""
    return 0 < value < math.inf
