"""What losses are called in a run file."""

from __future__ import annotations

import math
import re

from dovetail.models.errors import ModelError

OWN_LOSSES = ("answer", "answer-mean", "answer-sum")
"""Losses of a model that computes its own: one value a sample, or their mean, or their sum."""
NO_LOSS = "none"
"""What stands for the loss of a part that is only looked at."""
_TIMES = re.compile(r"\s*(-?[0-9][0-9_.]*(?:[eE][+-]?[0-9]+)?)\s*\*\s*(.*\S)\s*")


def weight_and_name(loss: str) -> tuple[float, str]:
    """Return how much a loss counts, and which it is: `0.3 * squared` is three tenths of the squared distance."""
    found = _TIMES.fullmatch(loss)
    if found is None:
        return 1.0, loss
    weight = float(found[1])
    if not math.isfinite(weight) or weight == 0.0:
        raise ModelError(f"the loss `{loss}` counts {weight:g} times", hint=f"give another number, or `{NO_LOSS}`")
    return weight, found[2]


def base_name(loss: str) -> str:
    """Return which loss it is, however much it counts."""
    return weight_and_name(loss)[1]
