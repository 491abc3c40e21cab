"""How good a model's answers are, batch by batch: each metric can be merged with that of another worker."""

from __future__ import annotations

import math
import re
from typing import Protocol, Self

import torch
from torch import Tensor

from dovetail.errors import did_you_mean
from dovetail.models.errors import ModelError


class Metric(Protocol):
    """A number over samples that arrive in batches."""

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in the answers to a batch, and what was true."""
        ...

    def merge(self, other: Self) -> None:
        """Take in what another worker has seen."""
        ...

    def value(self) -> float:
        """Return the metric over all that was taken in; NaN where that is too little."""
        ...


class Auc:
    """The area under the ROC curve, from counts of clicks and non-clicks by score.

    Scores become probabilities and those one of `num_bins`; within a bin a pair counts half. `error_bound` says how far
    that can be from the exact area: half the share of pairs that fall into one bin.
    """

    def __init__(self, num_bins: int = 1 << 16) -> None:
        self._clicked = torch.zeros(num_bins, dtype=torch.int64)
        self._quiet = torch.zeros(num_bins, dtype=torch.int64)

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in scores [n], [n, 1] or [n, 2] (not clicked, clicked) and labels [n]."""
        num_bins = self._clicked.shape[0]
        chance = torch.sigmoid(click_scores(scores).detach().double().cpu())
        if not bool(torch.isfinite(chance).all()):
            raise ModelError("the model's scores are not finite", hint="lower the learning rate")
        bins = (chance * num_bins).long().clamp_(max=num_bins - 1)
        clicked = targets.detach().cpu() > 0.5
        self._clicked += torch.bincount(bins[clicked], minlength=num_bins)
        self._quiet += torch.bincount(bins[~clicked], minlength=num_bins)

    def merge(self, other: Auc) -> None:
        """Add the counts of another worker."""
        self._clicked += other._clicked
        self._quiet += other._quiet

    def value(self) -> float:
        """Return the area."""
        clicked, quiet = self._clicked.double(), self._quiet.double()
        pairs = float(clicked.sum() * quiet.sum())
        if not pairs:
            return math.nan
        below = torch.cumsum(quiet, 0) - quiet
        return float((clicked * (below + quiet / 2)).sum()) / pairs

    def error_bound(self) -> float:
        """Return how far `value` can be from the exact area."""
        pairs = float(self._clicked.sum()) * float(self._quiet.sum())
        return float((self._clicked.double() * self._quiet.double()).sum()) / 2 / pairs if pairs else math.nan


class RecallAt:
    """The share of samples whose true item is among the `k` best scored."""

    def __init__(self, k: int) -> None:
        self.k = k
        self._found = 0
        self._samples = 0

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in scores [n, items] and the index of each true item [n]; of equals, the true one comes last."""
        of_target = scores.gather(1, targets[:, None].long().to(scores.device))
        better = (scores >= of_target).sum(dim=1) - 1
        self._found += int((better < self.k).sum())
        self._samples += targets.shape[0]

    def merge(self, other: RecallAt) -> None:
        """Add the counts of another worker."""
        self._found += other._found
        self._samples += other._samples

    def value(self) -> float:
        """Return the share."""
        return self._found / self._samples if self._samples else math.nan


class LogLoss:
    """The mean log-loss of a click."""

    def __init__(self) -> None:
        self._total = 0.0
        self._samples = 0

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in scores [n], [n, 1] or [n, 2] and labels [n]."""
        odds = click_scores(scores).detach().double()
        self._total += float(
            torch.nn.functional.binary_cross_entropy_with_logits(odds, targets.to(odds), reduction="sum")
        )
        self._samples += targets.shape[0]

    def merge(self, other: LogLoss) -> None:
        """Add the sums of another worker."""
        self._total += other._total
        self._samples += other._samples

    def value(self) -> float:
        """Return the mean."""
        return self._total / self._samples if self._samples else math.nan


def make_metric(name: str) -> Auc | RecallAt | LogLoss:
    """Return the metric of that name: `auc`, `log-loss` or `recall@K`."""
    if name == "auc":
        return Auc()
    if name == "log-loss":
        return LogLoss()
    if match := re.fullmatch(r"recall@([1-9]\d*)", name):
        return RecallAt(int(match[1]))
    raise ModelError(f"there is no metric `{name}`", hint=did_you_mean(name, ["auc", "log-loss", "recall@10"]))


def click_scores(scores: Tensor) -> Tensor:
    """Return the log-odds of a click from scores [n], [n, 1], or [n, 2] (not clicked, clicked)."""
    if scores.dim() == 2 and scores.shape[1] == 2:
        return scores[:, 1] - scores[:, 0]
    if scores.dim() == 1 or (scores.dim() == 2 and scores.shape[1] == 1):
        return scores.reshape(-1)
    raise ModelError(
        f"a click has one score, or two; the model gives {list(scores.shape)}",
        hint="choose recall@k for models that rank items",
    )
