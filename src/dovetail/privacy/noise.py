"""Noise of dense parameters: a number of the vector gets the same noise in a step whoever keeps which part of it."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.privacy.keys import derived
from dovetail.privacy.normals import AT_ONCE, PAIR, normals


class DenseNoise:
    """Adds a step's noise to the sum of clipped gradients, of all dense parameters or of a slice of them."""

    def __init__(self, key: bytes, *, stream: str, deviation: float) -> None:
        """Draw from the stream of that name, of a key that no worker has; `deviation` is that of each number."""
        self._key, self._deviation = derived(key, stream, "dense"), deviation

    def add(self, sums: NDArray[np.float32], *, step: int, first: int = 0) -> None:
        """Add the noise of a step, counted from 1, to sums that begin at number `first` of the dense vector.

        Numbers 2 i and 2 i + 1 of the vector have the pair of the counter (i, step).
        """
        last = -(-(first + len(sums)) // PAIR)
        for begin in range(first // PAIR, last, AT_ONCE):
            end = min(last, begin + AT_ONCE)
            counters = np.empty((end - begin, 2), dtype=np.uint64)
            counters[:, 0], counters[:, 1] = np.arange(begin, end), step
            add_scaled(sums, PAIR * begin - first, normals(self._key, counters), self._deviation)


@njit(cache=True, nogil=True, error_model="numpy")
def add_scaled(sums, at, drawn, deviation):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add numbers times a deviation to sums, the first of them at a place, which may lie before the first sum."""
    for i in range(max(0, -at), min(len(drawn), len(sums) - at)):
        sums[at + i] += np.float32(deviation * drawn[i])
