"""How well the model told clicks from other samples before it learnt from them: counts by score."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.models.metrics import click_scores

NUM_BINS = 4096
"""Chances that are closer to each other than 1/4096 count as equal."""
EVERY_S = 0.25
"""How often counts are told: 64 KiB each time."""

Counts = tuple[NDArray[np.int64], ...]
"""Of clicked and other samples by score; empty where there are none to tell."""


class ScoreCounts:
    """Clicked and other samples, by score, since they were last taken."""

    def __init__(self) -> None:
        """Start with no samples."""
        self._counts = np.zeros((2, NUM_BINS), dtype=np.int64)
        self._taken_s = time.monotonic()

    def add(self, scores: Tensor, labels: Tensor) -> None:
        """Count the samples of a micro-batch."""
        chance = torch.sigmoid(click_scores(scores.detach()).float().cpu())
        bins = (chance.numpy() * NUM_BINS).astype(np.int64).clip(0, NUM_BINS - 1)
        clicked = labels.cpu().numpy() > 0.5
        self._counts[0] += np.bincount(bins[clicked], minlength=NUM_BINS)
        self._counts[1] += np.bincount(bins[~clicked], minlength=NUM_BINS)

    def take(self) -> Counts:
        """Return the counts now and then, and nothing in between."""
        if time.monotonic() - self._taken_s < EVERY_S:
            return ()
        self._taken_s = time.monotonic()
        taken, self._counts = self._counts, np.zeros((2, NUM_BINS), dtype=np.int64)
        return taken[0], taken[1]
