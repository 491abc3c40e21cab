"""Mixing 64-bit words: where a key goes in an index, which shard owns it, what its first values are.

The steps are those of SplitMix64 (Steele, Lea and Flood, 2014).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def mix(word):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a word in which every bit of `word` decides about half of the bits; no two words give the same."""
    word = (word ^ (word >> _30)) * _FIRST_FACTOR
    word = (word ^ (word >> _27)) * _SECOND_FACTOR
    return word ^ (word >> _31)


@njit(cache=True, nogil=True, inline="always")
def place_of(key, size):  # type: ignore[no-untyped-def]  # pragma: no cover
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
