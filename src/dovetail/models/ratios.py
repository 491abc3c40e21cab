"""Metrics that are made of two sums: without torch, for whoever only adds them up."""

from __future__ import annotations

import math
from collections.abc import Sequence

LIVE = ("log-loss", "accuracy", "rmse", "mae", "calibration")
"""Those that are followed while a model trains: two sums a batch, and no ranking of all items."""


def ratio_value(name: str, counted: float, total: float) -> float:
    """Return the metric of that name from its sums: their ratio, and for `rmse` the root of it."""
    if not total:
        return math.nan
    ratio = counted / total
    return math.sqrt(ratio) if name.rpartition(".")[2] == "rmse" else ratio


def live_ratios(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return those of some metrics that are followed while a model trains, in their order."""
    return tuple(name for name in metrics if ":" not in name and name.rpartition(".")[2] in LIVE)
