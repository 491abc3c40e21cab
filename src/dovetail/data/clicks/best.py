"""The best any model can do on data whose truth is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_auc(probabilities: NDArray[np.float64]) -> float:
    """Return the expected AUC of a model that knows every sample's click probability.

    A pair (i, j) counts when i is clicked and j is not, with probability p_i (1 - p_j), and is then in the right order
    if p_i > p_j; a tie counts half. No order of the samples does better, since it puts the likelier of each pair first:

        AUC = sum_ij p_i (1 - p_j) ([p_i > p_j] + [p_i = p_j] / 2) / sum_ij p_i (1 - p_j)
    """
    p = np.sort(np.asarray(probabilities, dtype=np.float64))
    quiet = 1.0 - p
    below = np.concatenate([[0.0], np.cumsum(quiet)])
    first = np.searchsorted(p, p, side="left")
    last = np.searchsorted(p, p, side="right")
    in_order = np.sum(p * (below[first] + below[last]) / 2)
    all_pairs = np.sum(p) * np.sum(quiet)
    alone = np.sum(p * quiet)  # a sample is no pair with itself
    return float((in_order - alone / 2) / (all_pairs - alone))


def best_recall(probabilities: NDArray[np.float64], k: int) -> float:
    """Return the expected recall@k of a model that knows the chance of every item (columns) for every user (rows)."""
    if k >= probabilities.shape[1]:
        return 1.0
    top = np.partition(probabilities, -k, axis=1)[:, -k:]
    return float(np.mean(np.sum(top, axis=1)))
