"""The first value of a row: a hash of (seed, key, column), so it depends on no order and no place."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.splitmix import GOLDEN, mix

_40 = np.uint64(40)
_TO_SIGNED_UNIT = 2.0**-23


@njit(cache=True, nogil=True)
def fill_first_values(rows, slots, keys, width, seed, scale, first_state):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill the rows at `slots` with their first values, uniform in [-scale, scale), and their first state."""
    for i in range(len(keys)):
        slot = slots[i]
        stream = mix(mix(np.uint64(seed) ^ GOLDEN) + mix(np.uint64(keys[i])))
        for column in range(width):
            word = mix(stream + np.uint64(column + 1) * GOLDEN)
            rows[slot, column] = np.float32((np.float64(word >> _40) * _TO_SIGNED_UNIT - 1.0) * scale)
        for column in range(width, rows.shape[1]):
            rows[slot, column] = first_state


def first_values(keys: NDArray[np.int64], *, width: int, seed: int, scale: float) -> NDArray[np.float32]:
    """Return the first values of rows: float32 [len(keys), width], each uniform in [-scale, scale)."""
    rows = np.empty((len(keys), width), dtype=np.float32)
    slots = np.arange(len(keys), dtype=np.int32)
    fill_first_values(rows, slots, keys, width, seed, scale, np.float32(0))
    return rows
