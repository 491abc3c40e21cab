"""One bit: minus the scale, or the scale.

Without a residual the scale is the block's largest magnitude, and the chance of a plus (1 + x / scale) / 2: unbiased,
and very noisy. With a residual it is the sign times the mean magnitude (Seide et al., 2014; Karimireddy et al., 2019),
whose error is always smaller than what went in; the residual brings what is missing.
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

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_BIT = np.uint8(1)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz"})
def mean_magnitude(block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the mean magnitude of a block."""
    mean, part = _ZERO, _ONE / np.float32(len(block))
    for j in range(len(block)):
        mean += abs(block[j]) * part
    return mean


@njit(cache=True, nogil=True, error_model="numpy")
def encode_signs(values, residual, scales, codes, seed, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the signs of every block."""
    size = values.shape[1]
    eighth = size // 8
    block, noise, signs = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.uint8)
    words, word = np.empty(size // 4, np.uint64), np.empty(1, np.uint32)
    bits, parts, number = block.view(np.uint32), words.view(np.uint16), word.view(np.float32)
    for b in range(len(values)):
        take_block(values, residual, b, block)
        scale_bits = scale_above(largest_of(bits))
        if len(residual) and 0 < scale_bits < NOT_A_NUMBER:
            number[0] = mean_magnitude(block)
            scale_bits = scale_above(word[0])
        scales[b] = scale_bits
        word[0] = np.uint32(scale_bits) << np.uint32(16)
        scale = number[0]
        if not scale > _ZERO:
            signs[:] = np.uint8(0)
            keep_block(residual, b, block, scale)
        elif len(residual):
            for j in range(size):
                signs[j] = np.uint8(block[j] >= _ZERO)
            for j in range(size):
                residual[b, j] = block[j] - (_TWO * np.float32(signs[j]) - _ONE) * scale
        else:
            draw(words, (before + b) * len(words), seed)
            as_noise(parts, noise)
            for j in range(size):
                signs[j] = np.uint8(block[j] > scale * (_ONE - _TWO * noise[j]))
        for j in range(eighth):
            codes[b, j] = signs[j]
        for k in range(1, 8):
            for j in range(eighth):
                codes[b, j] |= np.uint8(signs[j + k * eighth] << np.uint8(k))


@njit(cache=True, nogil=True, error_model="numpy")
def decode_signs(scales, codes, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block; return the highest code that a bit can be."""
    size = values.shape[1]
    eighth = size // 8
    signs, word = np.empty(size, np.uint8), np.empty(1, np.uint32)
    number = word.view(np.float32)
    for b in range(len(values)):
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        scale = number[0]
        for k in range(8):
            for j in range(eighth):
                signs[j + k * eighth] = np.uint8(codes[b, j] >> np.uint8(k)) & _BIT
        for j in range(size):
            values[b, j] = (_TWO * np.float32(signs[j]) - _ONE) * scale
    return _BIT


class OneBit(BlockCodec):
    """The codec of one bit."""

    bits, number, name = 1, 5, "1 bit"
    encode_blocks, decode_blocks, highest_code = staticmethod(encode_signs), staticmethod(decode_signs), 1
