"""Rows into a tier and out of it, whole batches at a time."""

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.tiers.tier import Tier


def write(tier: Tier, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> NDArray[np.int32]:
    """Keep rows in their order, and return their numbers."""
    return tier.write_from(keys, rows, np.arange(len(keys), dtype=np.int32))


def read(tier: Tier, keys: NDArray[np.int64], numbers: NDArray[np.int32], *, row_width: int) -> NDArray[np.float32]:
    """Return the rows at `numbers`, in their order."""
    rows = np.full((len(keys), row_width), np.nan, dtype=np.float32)
    tier.read_into(keys, numbers, rows, np.arange(len(keys), dtype=np.int32))
    return rows
