"""What codecs with a scale a block share, as kernels: a block's numbers, its scale and its noise.

A block is `len(block)` numbers, a multiple of 8; the last one is filled up with zeros. A scale is the upper half of a
float32 (bfloat16). It is NaN where a number of the block is infinite or NaN, so that what went wrong at the sender is
seen at the receiver, and 0 where no number is above 2 ** -100.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.splitmix import GOLDEN, mix

BLOCK = 64
"""Numbers that share a scale, where nobody says otherwise."""
NOT_A_NUMBER = np.uint16(0x7FC0)
_LARGEST = np.uint16(0x7F7F)
_INFINITE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SMALLEST = np.uint32(0x0D800000)  # 2 ** -100
_16 = np.uint32(16)
_ROUND_UP = np.uint32(0xFFFF)
_PART = np.float32(1.0 / 65536.0)
_HALF_PART = np.float32(0.5 / 65536.0)
_ZERO = np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def take_block(values, residual, first, block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write numbers from `first` on, with what was kept of them, into a block; return how many there are."""
    count = min(len(block), len(values) - first)
    if len(residual):
        for j in range(count):
            block[j] = values[first + j] + residual[first + j]
    else:
        for j in range(count):
            block[j] = values[first + j]
    for j in range(count, len(block)):
        block[j] = _ZERO
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def largest_of(words):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the largest magnitude among float32 numbers, given and returned as their bits; NaN is above all."""
    top = np.uint32(0)
    for j in range(len(words)):
        top = max(top, np.uint32(words[j] & _MAGNITUDE))
    return top


@njit(cache=True, nogil=True, error_model="numpy")
def scale_above(top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the scale, as its bits, that is the least at or above a magnitude, given as its bits."""
    if top >= _INFINITE:
        return NOT_A_NUMBER
    if top < _SMALLEST:
        return np.uint16(0)
    return np.uint16(min(np.uint32(np.uint32(top + _ROUND_UP) >> _16), np.uint32(_LARGEST)))


@njit(cache=True, nogil=True, error_model="numpy")
def draw(words, first, seed):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill words with draws of a stream, from the one of number `first` on."""
    for i in range(len(words)):
        words[i] = mix(np.uint64(seed) + np.uint64(first + i) * GOLDEN)


@njit(cache=True, nogil=True, error_model="numpy")
def as_noise(parts, noise):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Turn 16 random bits each into numbers from 0 to 1, both exclusive, with a mean of exactly one half."""
    for j in range(len(noise)):
        noise[j] = np.float32(parts[j]) * _PART + _HALF_PART


@njit(cache=True, nogil=True, error_model="numpy")
def keep_all(residual, first, count, block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Keep a whole block, of which nothing goes."""
    if len(residual):
        for j in range(count):
            residual[first + j] = block[j]


@njit(cache=True, nogil=True, error_model="numpy")
def keep_none(residual, first, count):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Keep nothing of a block: it holds what is no number, which would never go away again."""
    if len(residual):
        for j in range(count):
            residual[first + j] = _ZERO
