"""Eight bits: evenly spaced levels from minus the block's scale to the scale, one of them zero.

    level = floor(127 x / scale + u),   u uniform in (0, 1)

The mean of the level is 127 x / scale: rounding is unbiased. With a residual u is one half: the nearest level, half the
error, and the residual brings what is missing. An error is then at most half a level and never larger than the number
itself, so a residual stays bounded.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.codecs.blocks import (
    BlockCodec,
    as_noise,
    draw,
    keep_block,
    largest_of,
    scale_above,
    take_block,
)

_ZERO, _HALF = np.float32(0), np.float32(0.5)
_TOP = 127
_MIDDLE, _MOST = np.float32(_TOP), np.int32(2 * _TOP)


@njit(cache=True, nogil=True, error_model="numpy")
def encode_levels(values, residual, scales, codes, seed, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the levels of every block."""
    size = values.shape[1]
    block, noise = np.empty(size, np.float32), np.empty(size, np.float32)
    words, word = np.empty(size // 4, np.uint64), np.empty(1, np.uint32)
    bits, parts, number = block.view(np.uint32), words.view(np.uint16), word.view(np.float32)
    for b in range(len(values)):
        take_block(values, residual, b, block)
        scale_bits = scale_above(largest_of(bits))
        scales[b] = scale_bits
        word[0] = np.uint32(scale_bits) << np.uint32(16)
        scale = number[0]
        if not scale > _ZERO:
            for j in range(size):
                codes[b, j] = np.uint8(_TOP)
            keep_block(residual, b, block, scale)
        elif len(residual):
            inverse, step = _MIDDLE / scale, scale / _MIDDLE
            for j in range(size):
                level = min(np.int32(block[j] * inverse + _MIDDLE + _HALF), _MOST)
                codes[b, j] = np.uint8(level)
                residual[b, j] = block[j] - (np.float32(level) - _MIDDLE) * step
        else:
            draw(words, (before + b) * len(words), seed)
            as_noise(parts, noise)
            inverse = _MIDDLE / scale
            for j in range(size):
                level = np.int32(block[j] * inverse + _MIDDLE + noise[j])
                codes[b, j] = np.uint8(min(level, _MOST))


@njit(cache=True, nogil=True, error_model="numpy")
def decode_levels(scales, codes, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block; return the highest level that there was."""
    size = values.shape[1]
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    highest = np.uint8(0)
    for b in range(len(values)):
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        step = number[0] / _MIDDLE
        for j in range(size):
            code = codes[b, j]
            highest = code if code > highest else highest
            values[b, j] = (np.float32(code) - _MIDDLE) * step
    return highest


class Levels(BlockCodec):
    """The codec of 8 bits."""

    bits, number, name = 8, 2, "8 bits"
    encode_blocks, decode_blocks, highest_code = staticmethod(encode_levels), staticmethod(decode_levels), 2 * _TOP
