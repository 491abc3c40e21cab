"""The hot loop of shuffling: samples of a batch in another order."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def pick(
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    dense: NDArray[np.float32],
    num_slots: int,
    positions: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:  # pragma: no cover
    """Return ids, offsets and numbers of the samples at `positions`, in that order; a sample's ids are one run."""
    total = 0
    for position in positions:
        total += offsets[(position + 1) * num_slots] - offsets[position * num_slots]
    picked_ids = np.empty(total, dtype=np.int64)
    picked_offsets = np.empty(positions.size * num_slots + 1, dtype=np.int64)
    picked_dense = np.empty((positions.size, dense.shape[1]), dtype=np.float32)
    end = 0
    for i, position in enumerate(positions):
        begin = offsets[position * num_slots]
        for slot in range(num_slots):
            picked_offsets[i * num_slots + slot] = end + offsets[position * num_slots + slot] - begin
        for source in range(begin, offsets[(position + 1) * num_slots]):
            picked_ids[end] = ids[source]
            end += 1
        for feature in range(dense.shape[1]):
            picked_dense[i, feature] = dense[position, feature]
    picked_offsets[positions.size * num_slots] = end
    return picked_ids, picked_offsets, picked_dense
