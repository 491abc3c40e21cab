"""One bit: minus the scale, or the scale.

Without a residual the scale is the block's largest magnitude, and the chance of a plus (1 + x / scale) / 2: unbiased, and
very noisy. With a residual it is the sign times the mean magnitude (Seide et al., 2014; Karimireddy et al., 2019), whose
error is always smaller than what went in; the residual brings what is missing.
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

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_BIT = np.uint8(1)


class OneBit:
    """The codec of one bit with a scale for every `block` numbers."""

    bits, number, name = 1, 5, "1 bit"

    def __init__(self, *, block: int = BLOCK) -> None:
        """Choose how many numbers share a scale."""
        self.block = block

    def encoded_bytes(self, count: int) -> int:
        """Return how many bytes numbers become: scales, then signs of whole blocks."""
        return -(-count // self.block) * (2 + self.block // 8)

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write scales and signs."""
        end = 2 * -(-len(values) // self.block)
        encode_signs(values, residual, codes[:end].view(np.uint16), codes[end:], seed, self.block)

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write minus or plus the scale; every bit stands for one of them."""
        end = 2 * -(-len(values) // self.block)
        decode_signs(codes[:end].view(np.uint16), codes[end:], values, self.block)


@njit(cache=True, nogil=True, error_model="numpy")
def encode_signs(values, residual, scales, codes, seed, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the signs of every block."""
    block, noise = np.empty(size, np.float32), np.empty(size, np.float32)
    bits, signs = block.view(np.uint32), np.empty(size, np.uint8)
    words = np.empty(size // 4, np.uint64)
    parts = words.view(np.uint16)
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    eighth = size // 8
    for b in range(len(scales)):
        first = b * size
        count = take_block(values, residual, first, block)
        scale_bits = scale_above(largest_of(bits))
        if len(residual) and 0 < scale_bits < NOT_A_NUMBER:
            mean, part = _ZERO, _ONE / np.float32(count)
            for j in range(size):
                mean += abs(block[j]) * part
            number[0] = mean
            scale_bits = scale_above(word[0])
        scales[b] = scale_bits
        word[0] = np.uint32(scale_bits) << np.uint32(16)
        scale = number[0]
        if not scale > _ZERO:
            signs[:] = np.uint8(0)
            if scale == _ZERO:
                keep_all(residual, first, count, block)
            else:
                keep_none(residual, first, count)
        elif len(residual):
            for j in range(size):
                signs[j] = np.uint8(block[j] >= _ZERO)
            for j in range(count):
                residual[first + j] = block[j] - (_TWO * np.float32(signs[j]) - _ONE) * scale
        else:
            draw(words, b * len(words), seed)
            as_noise(parts, noise)
            for j in range(size):
                signs[j] = np.uint8(block[j] > scale * (_ONE - _TWO * noise[j]))
        out = codes[b * eighth : b * eighth + eighth]
        for j in range(eighth):
            out[j] = signs[j]
        for k in range(1, 8):
            for j in range(eighth):
                out[j] |= np.uint8(signs[j + k * eighth] << np.uint8(k))


@njit(cache=True, nogil=True, error_model="numpy")
def decode_signs(scales, codes, values, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block."""
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    signs = np.empty(size, np.uint8)
    eighth = size // 8
    for b in range(len(scales)):
        first = b * size
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        scale = number[0]
        part = codes[b * eighth : b * eighth + eighth]
        for k in range(8):
            for j in range(eighth):
                signs[j + k * eighth] = np.uint8(part[j] >> np.uint8(k)) & _BIT
        out = values[first : min(first + size, len(values))]
        for j in range(len(out)):
            out[j] = (_TWO * np.float32(signs[j]) - _ONE) * scale
