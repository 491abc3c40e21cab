"""SplitMix64 (Steele, Lea and Flood, 2014): the one hash behind every random draw, first value and place of a key.

Its output passes the usual test batteries. What is drawn from it is in checkpoints and decides who owns a key,
so these numbers never change.
"""

from __future__ import annotations

import numpy as np
from numba import njit

GOLDEN_NUMBER = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
GOLDEN = np.uint64(GOLDEN_NUMBER)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(FACTORS[0]), np.uint64(FACTORS[1])
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


@njit(cache=True, nogil=True, inline="always")
def mix(word: np.uint64) -> np.uint64:  # pragma: no cover
    """Return a word in which every bit of `word` decides about half of the bits; no two words give the same."""
    word = (word ^ (word >> _30)) * _FIRST_FACTOR
    word = (word ^ (word >> _27)) * _SECOND_FACTOR
    return word ^ (word >> _31)
