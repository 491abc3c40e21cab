"""Where the search for a key begins in an index, and which shard owns the key."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.splitmix import GOLDEN, mix

_32 = np.uint64(32)


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
