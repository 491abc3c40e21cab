"""How much noise codes add to gradients: the signal by which a link gets more bits again.

A gradient is a sample: with other samples in the batch it would have been another. Noise of codes that is well below
that costs nothing, and noise as large as the gradient itself costs as much as training on half of the samples. It is
compared for every parameter by itself, as optimizers do that scale a parameter's steps by its own gradients; with
G = sum gradient^2 and E = sum (arrived - gradient)^2 over all sendings since a width was taken

    noise = mean over parameters of E / (E + G), weighted by sqrt(G)

For with such steps, the loss falls by a parameter's share of sqrt(G). A few thousand parameters stand for all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MOST_SAMPLED = 4096


class Noise:
    """What codes of one width added to what went over one link, as a part of what arrived: 0 to 1."""

    def __init__(self) -> None:
        """Begin a width."""
        self._gradients: NDArray[np.float64] = np.empty(0)
        self._errors: NDArray[np.float64] = np.empty(0)
        self._row_parts, self._num_rows = 0.0, 0

    @property
    def part(self) -> float:
        """Return the part that is noise: of dense parameters, or of rows, whichever is larger."""
        rows = self._row_parts / self._num_rows if self._num_rows else 0.0
        return max(rows, _mean(self._errors, self._gradients))

    def add_dense(self, gradients: Floats, kept_before: Floats, kept: Floats) -> None:
        """Take in gradients, sampled, and what was kept back of them before and after; always the same parameters."""
        if len(self._gradients) != len(gradients):
            self._gradients, self._errors = np.zeros((2, len(gradients)))
        self._gradients += np.square(gradients, dtype=np.float64)
        self._errors += np.square(kept_before - kept, dtype=np.float64)

    def add_rows(self, gradients: Floats, arrived: Floats) -> None:
        """Take in gradients of rows, which are others every time, as they are and as they arrive."""
        errors = np.square(arrived - gradients, dtype=np.float64).sum(axis=1)
        self._row_parts += _mean(errors, np.square(gradients, dtype=np.float64).sum(axis=1)) * len(gradients)
        self._num_rows += len(gradients)


def sampled(size: int) -> slice:
    """Return which of so many numbers stand for all."""
    return slice(0, size, max(1, -(-size // MOST_SAMPLED)))


def _mean(errors: NDArray[np.float64], gradients: NDArray[np.float64]) -> float:
    """Return the mean part of errors in sums of squares; what is no number is not noise of codes."""
    total, weights = errors + gradients, np.sqrt(gradients)
    seen = (weights > 0) & np.isfinite(total)
    return float(np.average(errors[seen] / total[seen], weights=weights[seen])) if seen.any() else 0.0
