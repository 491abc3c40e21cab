"""Noise of dense parameters: a number of the vector gets the same noise in a step whoever keeps which part of it."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.privacy.chacha import NORMALS_A_BLOCK, fill_normals, key_words
from dovetail.privacy.keys import derived

_32 = np.uint64(32)


class DenseNoise:
    """Adds a step's noise to the sum of clipped gradients, of all dense parameters or of a slice of them."""

    def __init__(self, key: bytes, *, stream: str, deviation: float) -> None:
        """Draw from the stream of that name, of a key that no worker has; `deviation` is that of each number."""
        self._key = key_words(derived(key, stream, "dense"))
        self._deviation = deviation

    def add(self, sums: NDArray[np.float32], *, step: int, first: int = 0) -> None:
        """Add the noise of a step, counted from 1, to sums that begin at number `first` of the dense vector."""
        add_dense(sums, first, self._key, step, self._deviation)


@njit(cache=True, nogil=True, error_model="numpy")
def add_dense(sums, first, key, step, deviation):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add noise to numbers from `first` on: number i of a step is number i % 8 of the block (i // 8, step)."""
    block, normals = np.empty(16, dtype=np.uint32), np.empty(NORMALS_A_BLOCK, dtype=np.float64)
    end = first + len(sums)
    for number in range(first // NORMALS_A_BLOCK, (end + NORMALS_A_BLOCK - 1) // NORMALS_A_BLOCK):
        low, high = np.uint64(number), np.uint64(step)
        fill_normals(key, low, low >> _32, high, high >> _32, block, normals)
        begin = number * NORMALS_A_BLOCK
        for i in range(max(first, begin), min(end, begin + NORMALS_A_BLOCK)):
            sums[i - first] += np.float32(deviation * normals[i - begin])
