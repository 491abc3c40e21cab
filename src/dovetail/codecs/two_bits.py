"""Two bits: minus the scale, zero, or the scale.

Without a residual the scale is the block's largest magnitude and |x| / scale the chance of not being zero: unbiased, as
in TernGrad (Wen et al., 2017). That has errors larger than what went in, and a residual would grow without end. With a
residual, numbers above 0.7 times the mean magnitude become the mean of those, the others zero (Li and Liu, 2016):
biased, with about the least error, always smaller than what went in; the residual brings what is missing.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.codecs.blocks import (
    NOT_A_NUMBER,
    BlockCodec,
    as_noise,
    draw,
    keep_block,
    largest_of,
    scale_above,
    take_block,
)

_ZERO, _ONE = np.float32(0), np.float32(1)
_THRESHOLD = np.float32(0.7)
_2, _4, _6, _LOW = np.uint8(2), np.uint8(4), np.uint8(6), np.uint8(3)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz"})
def ternary_scale(block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the threshold and the scale with about the least error for a block."""
    part = _THRESHOLD / np.float32(len(block))
    threshold, count, scale = _ZERO, _ZERO, _ZERO
    for j in range(len(block)):
        threshold += abs(block[j]) * part
    for j in range(len(block)):
        count += _ONE if abs(block[j]) > threshold else _ZERO
    share = _ONE / max(count, _ONE)
    for j in range(len(block)):
        scale += abs(block[j]) * share if abs(block[j]) > threshold else _ZERO
    return threshold, scale


@njit(cache=True, nogil=True, error_model="numpy")
def encode_two(values, residual, scales, codes, seed, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the codes of every block."""
    size = values.shape[1]
    quarter = size // 4
    block, noise, signs = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.uint8)
    words, word = np.empty(size // 4, np.uint64), np.empty(1, np.uint32)
    bits, parts, number = block.view(np.uint32), words.view(np.uint16), word.view(np.float32)
    for b in range(len(values)):
        take_block(values, residual, b, block)
        scale_bits = scale_above(largest_of(bits))
        threshold = _ZERO
        if len(residual) and 0 < scale_bits < NOT_A_NUMBER:
            threshold, number[0] = ternary_scale(block)
            scale_bits = scale_above(word[0])
        scales[b] = scale_bits
        word[0] = np.uint32(scale_bits) << np.uint32(16)
        scale = number[0]
        if not scale > _ZERO:
            signs[:] = np.uint8(1)
            keep_block(residual, b, block, scale)
        elif len(residual):
            for j in range(size):
                signs[j] = np.uint8(1) + np.uint8(block[j] > threshold) - np.uint8(block[j] < -threshold)
            for j in range(size):
                residual[b, j] = block[j] - (np.float32(signs[j]) - _ONE) * scale
        else:
            draw(words, (before + b) * len(words), seed)
            as_noise(parts, noise)
            inverse = _ONE / scale
            for j in range(size):
                sign = np.int32(block[j] * inverse + _ONE + noise[j])
                signs[j] = np.uint8(sign if sign < 2 else 2)
        for j in range(quarter):
            low = signs[j] | np.uint8(signs[j + quarter] << _2)
            high = np.uint8(signs[j + 2 * quarter] << _4) | np.uint8(signs[j + 3 * quarter] << _6)
            codes[b, j] = low | high


@njit(cache=True, nogil=True, error_model="numpy")
def decode_two(scales, codes, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block; return the highest code that there was."""
    size = values.shape[1]
    quarter = size // 4
    signs, word = np.empty(size, np.uint8), np.empty(1, np.uint32)
    number = word.view(np.float32)
    highest = np.uint8(0)
    for b in range(len(values)):
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        scale = number[0]
        for j in range(quarter):
            code = codes[b, j]
            signs[j] = code & _LOW
            signs[j + quarter] = np.uint8(code >> _2) & _LOW
            signs[j + 2 * quarter] = np.uint8(code >> _4) & _LOW
            signs[j + 3 * quarter] = code >> _6
        for j in range(size):
            highest = signs[j] if signs[j] > highest else highest
            values[b, j] = (np.float32(signs[j]) - _ONE) * scale
    return highest


class TwoBits(BlockCodec):
    """The codec of two bits."""

    bits, number, name = 2, 4, "2 bits"
    encode_blocks, decode_blocks, highest_code = staticmethod(encode_two), staticmethod(decode_two), 2
