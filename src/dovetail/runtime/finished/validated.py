"""What came of trying a model on data it is not trained on."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from dovetail.runtime.folder import VALIDATION

MORE_IS_BETTER = ("auc", "accuracy", "recall")
"""How the names of metrics begin of which more is better; of the others, less is."""


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    """How good the model of one checkpoint is."""

    step: int
    samples: int
    """Trained on before, over all epochs."""
    figures: dict[str, float | None]
    """The mean loss as `loss`, and metrics."""
    is_best: bool


def is_better(metric: str, value: float | None, before: float | None, least_gain: float = 0.0) -> bool:
    """Say whether a figure is better than another by more than `least_gain`; a number is better than none."""
    if value is None or math.isnan(value):
        return False
    if before is None or math.isnan(before):
        return True
    gain = value - before if metric.startswith(MORE_IS_BETTER) else before - value
    return gain > least_gain


def read_validated(folder: Path) -> list[Validated]:
    """Return what a run's folder says, oldest first; a line that was cut off is left out."""
    path = folder / VALIDATION
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            found.append(msgspec.json.decode(line, type=Validated))
        except msgspec.MsgspecError:
            continue
    return found
