"""How a model is trained unless its user says otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Names of a loss, a metric, an optimizer and a schedule, with the numbers that go with them."""

    loss: str = "logistic"
    metric: str = "auc"
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    batch: int = 1000
