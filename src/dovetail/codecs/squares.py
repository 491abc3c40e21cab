"""Four bits: levels that lie closer together the nearer they are to zero, the squares of -7 to 7.

    level k stands for  k |k| scale / 49

A block's numbers differ in size, and optimizers that scale every parameter's steps by its own gradients (Adam, Adagrad)
care about small ones as much as about large ones. Even levels would leave most of a block at zero; squares are fine
where numbers are small and coarse where a coarse level does no harm.

Without a residual, a number becomes the level below or above it by chance, with the mean that went in. With one, it
becomes the nearest: half the error, and the residual brings what is missing. An error is then never larger than the
number itself, and at most 13/98 of the scale, so a residual stays bounded.
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

_ZERO, _ONE, _HALF, _QUARTER = np.float32(0), np.float32(1), np.float32(0.5), np.float32(0.25)
_TOP = 7
_MOST = np.float32(_TOP)
_SQUARE = np.float32(_TOP * _TOP)
_4 = np.uint8(4)
_LOW = np.uint8(15)


@njit(cache=True, nogil=True, error_model="numpy")
def encode_squares(values, residual, scales, codes, seed, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the levels of every block."""
    size = values.shape[1]
    half = size // 2
    block, noise, levels = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    words, word = np.empty(size // 4, np.uint64), np.empty(1, np.uint32)
    bits, parts, number = block.view(np.uint32), words.view(np.uint16), word.view(np.float32)
    for b in range(len(values)):
        take_block(values, residual, b, block)
        scale_bits = scale_above(largest_of(bits))
        scales[b] = scale_bits
        word[0] = np.uint32(scale_bits) << np.uint32(16)
        scale = number[0]
        if not scale > _ZERO:
            levels[:] = _ZERO
            keep_block(residual, b, block, scale)
        elif len(residual):
            inverse, step = _SQUARE / scale, scale / _SQUARE
            for j in range(size):
                # Halfway between k and k + 1 squared lies (k + 1/2) squared + 1/4.
                above = max(abs(block[j]) * inverse - _QUARTER, _ZERO)
                level = min(np.floor(np.sqrt(above) + _HALF), _MOST)
                levels[j] = np.copysign(level, block[j])
            for j in range(size):
                residual[b, j] = block[j] - levels[j] * abs(levels[j]) * step
        else:
            draw(words, (before + b) * len(words), seed)
            as_noise(parts, noise)
            inverse = _SQUARE / scale
            for j in range(size):
                square = abs(block[j]) * inverse
                below = np.floor(np.sqrt(square))
                gap = below + below + _ONE
                level = below + np.floor((square - below * below) / gap + noise[j])
                levels[j] = np.copysign(min(level, _MOST), block[j])
        for j in range(half):
            low, high = np.int32(levels[j]) + _TOP, np.int32(levels[j + half]) + _TOP
            codes[b, j] = np.uint8(low) | np.uint8(np.uint8(high) << _4)


@njit(cache=True, nogil=True, error_model="numpy")
def decode_squares(scales, codes, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block; return the highest level that there was."""
    size = values.shape[1]
    half = size // 2
    levels, word = np.empty(size, np.uint8), np.empty(1, np.uint32)
    number = word.view(np.float32)
    highest = np.uint8(0)
    for b in range(len(values)):
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        step = number[0] / _SQUARE
        for j in range(half):
            levels[j] = codes[b, j] & _LOW
            levels[j + half] = codes[b, j] >> _4
        for j in range(size):
            highest = levels[j] if levels[j] > highest else highest
            level = np.float32(levels[j]) - _MOST
            values[b, j] = level * abs(level) * step
    return highest


class Squares(BlockCodec):
    """The codec of 4 bits."""

    bits, number, name = 4, 7, "4 bits"
    encode_blocks, decode_blocks, highest_code = staticmethod(encode_squares), staticmethod(decode_squares), 2 * _TOP
