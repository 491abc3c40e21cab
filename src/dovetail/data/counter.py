"""Random numbers without a state: the n-th draw of a stream is a hash of (stream, n).

Any draw can be made first, anywhere, again: that is what lets every worker make any sample.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.data.streams import stream_number
from dovetail.splitmix import GOLDEN, mix

_11 = np.uint64(11)
_TO_UNIT = 2.0**-53


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
