"""How a model is trained unless its user says otherwise; of those that come with Dovetail without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
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


RECIPES: Mapping[str, Recipe] = {
    "ctr-dnn": Recipe(loss="cross-entropy", learning_rate=1e-4),
    "2emb": Recipe(loss="cross-entropy", learning_rate=1e-4, truth="two-tables"),
    "dlrm": Recipe(batch=2048, truth="dot"),
    "matchnet": Recipe(loss="hinge", metric="recall@10", truth="user-item"),
    "nce": Recipe(loss="nce", metric="recall@10", truth="next-item"),
}
"""By the names of the models that come with Dovetail."""
