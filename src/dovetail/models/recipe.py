"""How a model is trained unless its user says otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Names of a loss, a metric, an optimizer, a schedule and made data, with the numbers that go with them."""

    loss: str = "logistic"
    metric: str = "auc"
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    batch: int = 1000
    truth: str = "deep"
    """The truth of the data `clicks` that such a model can learn in full."""
