"""Random numbers without a state: the n-th draw of a stream is a hash of (stream, n).

The mixing steps are those of SplitMix64 (Steele, Lea and Flood, 2014), whose output passes the usual test batteries.
Any draw can be made first, anywhere, again: that is what lets every worker make any sample.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.data.streams import stream_number

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_TO_UNIT = 2.0**-53


@njit(cache=True, nogil=True, inline="always")
def mix(word: np.uint64) -> np.uint64:  # pragma: no cover
    """Return a 64-bit word in which every bit of `word` decides about half of the bits."""
    word = (word ^ (word >> _30)) * _FIRST_FACTOR
    word = (word ^ (word >> _27)) * _SECOND_FACTOR
    return word ^ (word >> _31)


@njit(cache=True, nogil=True, inline="always")
def draw(stream: np.uint64, number: np.uint64) -> np.uint64:  # pragma: no cover
    """Return 64 random bits: draw `number` of `stream`."""
    return mix(stream + (number + np.uint64(1)) * GOLDEN)


@njit(cache=True, nogil=True, inline="always")
def unit(word: np.uint64) -> float:  # pragma: no cover
    """Return the top 53 bits of a word as a number from 0 up to but not including 1."""
    return float(word >> _11) * _TO_UNIT


@njit(cache=True, nogil=True)
def substream(stream: np.uint64, number: np.uint64) -> np.uint64:  # pragma: no cover
    """Return the stream that belongs to `number`, unlike every other one and unlike `stream` itself."""
    return mix(mix(stream ^ GOLDEN) + mix(number))


def stream_of(seed: int, purpose: str) -> np.uint64:
    """Return the stream of a seed for one purpose, as kernels take it."""
    return np.uint64(stream_number(seed, purpose))
