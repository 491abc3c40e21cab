"""Two bits: minus the scale, zero, or the scale.

Without a residual the scale is the block's largest magnitude and |x| / scale the chance of not being zero: unbiased, as
in TernGrad (Wen et al., 2017). That has errors larger than what went in, and a residual would grow without end. With a
residual, numbers above 0.7 times the mean magnitude become the mean of those, the others zero (Li and Liu, 2016): biased,
with the least error, always smaller than what went in; the residual brings what is missing.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.codecs.blocks import (
    BLOCK,
    NOT_A_NUMBER,
    as_noise,
    draw,
    keep_all,
    keep_none,
    largest_of,
    scale_above,
    take_block,
)
from dovetail.codecs.codec import NOTHING_KEPT, Bytes, Floats
from dovetail.transport import WireError

_ZERO, _ONE = np.float32(0), np.float32(1)
_THRESHOLD = np.float32(0.7)
_2, _4, _6, _LOW = np.uint8(2), np.uint8(4), np.uint8(6), np.uint8(3)


class TwoBits:
    """The codec of two bits with a scale for every `block` numbers."""

    bits, number, name = 2, 4, "2 bits"

    def __init__(self, *, block: int = BLOCK) -> None:
        """Choose how many numbers share a scale."""
        self.block = block

    def encoded_bytes(self, count: int) -> int:
        """Return how many bytes numbers become: scales, then codes of whole blocks."""
        return -(-count // self.block) * (2 + self.block // 4)

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write scales and codes."""
        end = 2 * -(-len(values) // self.block)
        encode_two(values, residual, codes[:end].view(np.uint16), codes[end:], seed, self.block)

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write -1, 0 or 1 times the scale."""
        end = 2 * -(-len(values) // self.block)
        if not decode_two(codes[:end].view(np.uint16), codes[end:], values, self.block):
            raise WireError("a payload of 2 bits has a code that stands for nothing")


@njit(cache=True, nogil=True, error_model="numpy")
def ternary_scale(block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the threshold and the scale with about the least error for a block."""
    part = _THRESHOLD / np.float32(len(block))
    threshold = _ZERO
    for j in range(len(block)):
        threshold += abs(block[j]) * part
    count = _ZERO
    for j in range(len(block)):
        count += _ONE if abs(block[j]) > threshold else _ZERO
    share, scale = _ONE / max(count, _ONE), _ZERO
    for j in range(len(block)):
        scale += abs(block[j]) * share if abs(block[j]) > threshold else _ZERO
    return threshold, scale


@njit(cache=True, nogil=True, error_model="numpy")
def encode_two(values, residual, scales, codes, seed, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the codes of every block."""
    block, noise = np.empty(size, np.float32), np.empty(size, np.float32)
    bits, signs = block.view(np.uint32), np.empty(size, np.uint8)
    words = np.empty(size // 4, np.uint64)
    parts = words.view(np.uint16)
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    quarter = size // 4
    for b in range(len(scales)):
        first = b * size
        count = take_block(values, residual, first, block)
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
            if scale == _ZERO:
                keep_all(residual, first, count, block)
            else:
                keep_none(residual, first, count)
        elif len(residual):
            for j in range(size):
                signs[j] = np.uint8(1) + np.uint8(block[j] > threshold) - np.uint8(block[j] < -threshold)
            for j in range(count):
                residual[first + j] = block[j] - (np.float32(signs[j]) - _ONE) * scale
        else:
            draw(words, b * len(words), seed)
            as_noise(parts, noise)
            inverse = _ONE / scale
            for j in range(size):
                signs[j] = np.uint8(min(block[j] * inverse + _ONE + noise[j], np.float32(2.5)))
        out = codes[b * quarter : b * quarter + quarter]
        for j in range(quarter):
            low = signs[j] | np.uint8(signs[j + quarter] << _2)
            high = np.uint8(signs[j + 2 * quarter] << _4) | np.uint8(signs[j + 3 * quarter] << _6)
            out[j] = low | high


@njit(cache=True, nogil=True, error_model="numpy")
def decode_two(scales, codes, values, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block; return False where a code is none."""
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    signs = np.empty(size, np.uint8)
    quarter = size // 4
    highest = np.uint8(0)
    for b in range(len(scales)):
        first = b * size
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        scale = number[0]
        part = codes[b * quarter : b * quarter + quarter]
        for j in range(quarter):
            code = part[j]
            signs[j] = code & _LOW
            signs[j + quarter] = np.uint8(code >> _2) & _LOW
            signs[j + 2 * quarter] = np.uint8(code >> _4) & _LOW
            signs[j + 3 * quarter] = code >> _6
        for j in range(size):
            highest = max(highest, signs[j])
        out = values[first : min(first + size, len(values))]
        for j in range(len(out)):
            out[j] = (np.float32(signs[j]) - _ONE) * scale
    return highest <= 2
