"""How well the model did on samples before it learnt from them, told to the coordinator now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.models.answers import heads_of, label_of
from dovetail.models.metrics import OfHead, Ratio, make_metric, one_score_each
from dovetail.models.ratios import live_ratios

NUM_BINS = 4096
"""Chances that are closer to each other than 1/4096 count as equal."""
EVERY_S = 0.25
"""How often counts are told: 64 KiB each time."""

Counts = tuple[NDArray[Any], ...]
"""Clicked and other samples by score, two sums for each metric that has them, running statistics; or nothing."""


def no_statistics() -> NDArray[np.float32]:
    """Return the running statistics of a model that has none, or whose servers keep them."""
    return np.zeros(0, dtype=np.float32)


class ScoreCounts:
    """What was seen since it was last taken."""

    def __init__(self, metrics: Sequence[str], statistics: Callable[[], NDArray[np.float32]] = no_statistics) -> None:
        """Start with no samples; `statistics` are the model's running means and variances."""
        self._auc = next((name for name in metrics if name.rpartition(".")[2] == "auc"), None)
        self._bins = NUM_BINS if self._auc is not None else 0
        self._counts = np.zeros((2, self._bins), dtype=np.int64)
        self._metrics = [make_metric(name) for name in live_ratios(metrics)]
        self._statistics = statistics
        self._taken_s = time.monotonic()

    def add(self, scores: Any, labels: Tensor) -> None:
        """Count the samples of a micro-batch."""
        if self._auc is not None:
            self._count(*_of_head(self._auc, scores, labels))
        for metric in self._metrics:
            metric.update(scores, labels)

    def _count(self, scores: Tensor, labels: Tensor) -> None:
        """Count clicked and other samples by score."""
        odds, labels = one_score_each(scores.detach(), labels)
        chance = torch.sigmoid(odds.float().cpu())
        bins = (chance.numpy() * NUM_BINS).astype(np.int64).clip(0, NUM_BINS - 1)
        clicked = labels.cpu().numpy() > 0.5
        self._counts[0] += np.bincount(bins[clicked], minlength=NUM_BINS)
        self._counts[1] += np.bincount(bins[~clicked], minlength=NUM_BINS)

    def take(self) -> Counts:
        """Return the counts now and then, and nothing in between."""
        if time.monotonic() - self._taken_s < EVERY_S:
            return ()
        self._taken_s = time.monotonic()
        taken, self._counts = self._counts, np.zeros((2, self._bins), dtype=np.int64)
        sums = np.array([_taken_sums(metric) for metric in self._metrics], dtype=np.float32).reshape(-1, 2)
        return taken[0], taken[1], sums, self._statistics()


def counts_of(
    metrics: Sequence[str], statistics: Callable[[], NDArray[np.float32]], *, has_own: bool
) -> ScoreCounts | None:
    """Return what counts for a worker, with running statistics where it keeps its own; None where nothing is told."""
    has_own = has_own and len(statistics()) > 0
    return ScoreCounts(metrics, statistics if has_own else no_statistics) if has_own or metrics else None


def _taken_sums(metric: Ratio | OfHead) -> list[float]:
    """Return a metric's sums, and have it count from zero again."""
    inner: Any = metric.inner if isinstance(metric, OfHead) else metric
    sums, inner.sums = inner.sums, [0.0, 0.0]
    return list(sums)


def _of_head(name: str, scores: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of the answer that a metric's name names, and its label."""
    head = name.rpartition(".")[0]
    if not head:
        return scores, labels
    parts = heads_of(scores)
    return parts[head], label_of(head, parts, labels)
