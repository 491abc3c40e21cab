"""What follows from a key alone: where an index looks for it first, which shard owns it, the first values of its row.

First values are a hash of (seed, key, column), so they depend on no order and no place.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.splitmix import GOLDEN, mix

_32, _40 = np.uint64(32), np.uint64(40)
_TO_SIGNED_UNIT = 2.0**-23


@njit(cache=True, nogil=True, inline="always")
def home_of(key, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where the search for `key` begins among `size` places (below 2**32)."""
    return np.int64(((mix(np.uint64(key) + GOLDEN) >> _32) * np.uint64(size)) >> _32)


@njit(cache=True, nogil=True)
def owners(keys, num_shards, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write into `out` the shard, from 0, that owns each key."""
    for i in range(len(keys)):
        out[i] = np.int64(mix(mix(np.uint64(keys[i]) ^ GOLDEN)) % np.uint64(num_shards))


def shard_of(keys: NDArray[np.int64], num_shards: int) -> NDArray[np.int64]:
    """Return the shard, from 0 to `num_shards` - 1, that owns each key."""
    out = np.empty(len(keys), dtype=np.int64)
    owners(keys, num_shards, out)
    return out


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
