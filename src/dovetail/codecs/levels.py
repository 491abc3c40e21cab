"""Eight and four bits: evenly spaced levels from minus the block's scale to the scale, one of them zero.

    level = floor(L x / scale + u),   L = 127 or 7,   u uniform in (0, 1)

The mean of the level is L x / scale: rounding is unbiased. As zero is a level, and the scale that of the block's
largest number, errors are smaller than what went in, so a residual stays bounded:

    sum of errors' squares <= 64 (scale / L)^2 / 4 < scale^2 <= sum of squares      (expected; L >= 7, blocks of <= 64)
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.codecs.blocks import (
    BLOCK,
    BlockCodec,
    as_noise,
    draw,
    keep_block,
    largest_of,
    scale_above,
    take_block,
)
from dovetail.codecs.codec import Bytes, Floats

_ZERO = np.float32(0)
_4 = np.uint8(4)
_LOW = np.uint8(15)


class Levels(BlockCodec):
    """The codec of 8 or 4 bits."""

    def __init__(self, bits: int, *, block: int = BLOCK) -> None:
        """Choose the width."""
        super().__init__(block=block)
        self.bits, self.number = bits, 2 if bits == 8 else 3
        self.name = f"{bits} bits"
        self._top = 127 if bits == 8 else 7

    def encode_blocks(
        self, values: Floats, residual: Floats, scales: NDArray[np.uint16], codes: Bytes, seed: int, first: int
    ) -> None:
        """Write scales and levels."""
        encode_levels(values, residual, scales, codes, seed, first, self._top)

    def decode_blocks(self, scales: NDArray[np.uint16], codes: Bytes, values: Floats) -> bool:
        """Write levels times scales."""
        return bool(decode_levels(scales, codes, values, self._top) <= 2 * self._top)


@njit(cache=True, nogil=True, error_model="numpy")
def encode_levels(values, residual, scales, codes, seed, before, top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the levels of every block."""
    size = values.shape[1]
    half = size // 2
    block, noise, levels = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.uint8)
    words, word = np.empty(size // 4, np.uint64), np.empty(1, np.uint32)
    bits, parts, number = block.view(np.uint32), words.view(np.uint16), word.view(np.float32)
    middle, most = np.float32(top), np.int32(2 * top)
    for b in range(len(values)):
        take_block(values, residual, b, block)
        scale_bits = scale_above(largest_of(bits))
        scales[b] = scale_bits
        word[0] = np.uint32(scale_bits) << np.uint32(16)
        scale = number[0]
        if scale > _ZERO:
            draw(words, (before + b) * len(words), seed)
            as_noise(parts, noise)
            inverse, step = middle / scale, scale / middle
            for j in range(size):
                level = np.int32(block[j] * inverse + middle + noise[j])
                levels[j] = np.uint8(level if level < most else most)
            if len(residual):
                for j in range(size):
                    residual[b, j] = block[j] - (np.float32(levels[j]) - middle) * step
        else:
            levels[:] = np.uint8(top)
            keep_block(residual, b, block, scale)
        if top == 127:
            for j in range(size):
                codes[b, j] = levels[j]
        else:
            for j in range(half):
                codes[b, j] = levels[j] | np.uint8(levels[j + half] << _4)


@njit(cache=True, nogil=True, error_model="numpy")
def decode_levels(scales, codes, values, top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block; return the highest level that there was."""
    size = values.shape[1]
    half = size // 2
    levels, word = np.empty(size, np.uint8), np.empty(1, np.uint32)
    number = word.view(np.float32)
    middle, highest = np.float32(top), np.uint8(0)
    for b in range(len(values)):
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        step = number[0] / middle
        if top == 127:
            for j in range(size):
                levels[j] = codes[b, j]
        else:
            for j in range(half):
                levels[j] = codes[b, j] & _LOW
                levels[j + half] = codes[b, j] >> _4
        for j in range(size):
            highest = levels[j] if levels[j] > highest else highest
            values[b, j] = (np.float32(levels[j]) - middle) * step
    return highest
