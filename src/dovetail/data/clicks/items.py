"""Made-up items: numbers and ids of each, drawn from its index."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from dovetail.data.clicks.kernels import near_normal
from dovetail.data.counter import draw, substream, unit
from dovetail.data.items import ItemPool

_DENSE_FROM = 1 << 20


@njit(cache=True, nogil=True)
def draw_item_features(
    stream: np.uint64, items: NDArray[np.int64], rows_per_slot: NDArray[np.int64], num_topics: int, num_dense: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:  # pragma: no cover
    """Return the rows [n, s] and the numbers [n, d] of items: slot 0 is the item itself, slot 1 its topic."""
    rows = np.empty((items.size, rows_per_slot.size), dtype=np.int64)
    dense = np.empty((items.size, num_dense), dtype=np.float32)
    for i in range(items.size):
        own = substream(stream, np.uint64(items[i]))
        for slot in range(rows_per_slot.size):
            rows[i, slot] = int(unit(draw(own, np.uint64(slot))) * rows_per_slot[slot])
        rows[i, 0] = items[i]
        if rows_per_slot.size > 1:
            rows[i, 1] = items[i] % num_topics
        for feature in range(num_dense):
            dense[i, feature] = near_normal(draw(own, np.uint64(_DENSE_FROM + feature)))
    return rows, dense


def pool_of(rows: NDArray[np.int64], dense: NDArray[np.float32], first_keys: NDArray[np.int64]) -> ItemPool:
    """Return the pool of items with these rows, under the keys of their slots."""
    return ItemPool(ids=torch.from_numpy(rows + first_keys[None, :]), dense=torch.from_numpy(dense))
