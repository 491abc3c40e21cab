"""Eight and four bits: evenly spaced levels from minus the block's scale to the scale, one of them zero.

    level = floor(L x / scale + u),   L = 127 or 7,   u uniform in (0, 1)

The mean of the level is L x / scale: rounding is unbiased. As zero is a level, and the scale that of the block's largest
number, errors are smaller than what went in, so a residual stays bounded:

    sum of errors' squares <= 64 (scale / L)^2 / 4 < scale^2 <= sum of squares      (expected; L >= 7, blocks of <= 64)
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.codecs.blocks import BLOCK, as_noise, draw, keep_all, keep_none, largest_of, scale_above, take_block
from dovetail.codecs.codec import NOTHING_KEPT, Bytes, Floats
from dovetail.transport import WireError

_ZERO = np.float32(0)
_4 = np.uint8(4)
_LOW = np.uint8(15)


class Levels:
    """The codec of `bits` (8 or 4) with a scale for every `block` numbers."""

    def __init__(self, bits: int, *, number: int, block: int = BLOCK) -> None:
        """Choose the width."""
        self.bits, self.number, self.block = bits, number, block
        self.name = f"{bits} bits"
        self._top = 127 if bits == 8 else 7

    def _sizes(self, count: int) -> tuple[int, int]:
        """Return how many blocks there are, and how many bytes of scales."""
        blocks = -(-count // self.block)
        return blocks, 2 * blocks

    def encoded_bytes(self, count: int) -> int:
        """Return how many bytes numbers become: scales, then levels of whole blocks."""
        blocks, scales = self._sizes(count)
        return scales + blocks * self.block * self.bits // 8

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write scales and levels."""
        _, end = self._sizes(len(values))
        encode_levels(values, residual, codes[:end].view(np.uint16), codes[end:], seed, self.block, self._top)

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write levels times scales."""
        _, end = self._sizes(len(values))
        if not decode_levels(codes[:end].view(np.uint16), codes[end:], values, self.block, self._top):
            raise WireError(f"a payload of {self.name} has a level beyond its {2 * self._top + 1}")


@njit(cache=True, nogil=True, error_model="numpy")
def encode_levels(values, residual, scales, codes, seed, size, top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the scale and the levels of every block."""
    block, noise = np.empty(size, np.float32), np.empty(size, np.float32)
    bits, levels = block.view(np.uint32), np.empty(size, np.uint8)
    words = np.empty(size // 4, np.uint64)
    parts = words.view(np.uint16)
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    middle, most = np.float32(top), np.float32(2 * top) + np.float32(0.5)
    half = size // 2
    for b in range(len(scales)):
        first = b * size
        count = take_block(values, residual, first, block)
        scale_bits = scale_above(largest_of(bits))
        scales[b] = scale_bits
        word[0] = np.uint32(scale_bits) << np.uint32(16)
        scale = number[0]
        if not scale > _ZERO:
            levels[:] = np.uint8(top)
            if scale == _ZERO:
                keep_all(residual, first, count, block)
            else:
                keep_none(residual, first, count)
        else:
            draw(words, b * len(words), seed)
            as_noise(parts, noise)
            inverse, step = middle / scale, scale / middle
            for j in range(size):
                levels[j] = np.uint8(min(block[j] * inverse + middle + noise[j], most))
            if len(residual):
                for j in range(count):
                    residual[first + j] = block[j] - (np.float32(levels[j]) - middle) * step
        if top == 127:
            out = codes[first : first + size]
            for j in range(size):
                out[j] = levels[j]
        else:
            out = codes[b * half : b * half + half]
            for j in range(half):
                out[j] = levels[j] | np.uint8(levels[j + half] << _4)


@njit(cache=True, nogil=True, error_model="numpy")
def decode_levels(scales, codes, values, size, top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the numbers of every block; return False where a level is none."""
    word = np.empty(1, np.uint32)
    number = word.view(np.float32)
    levels = np.empty(size, np.uint8)
    middle, half = np.float32(top), size // 2
    highest = np.uint8(0)
    for b in range(len(scales)):
        first = b * size
        word[0] = np.uint32(scales[b]) << np.uint32(16)
        step = number[0] / middle
        if top == 127:
            part = codes[first : first + size]
            for j in range(size):
                levels[j] = part[j]
        else:
            part = codes[b * half : b * half + half]
            for j in range(half):
                levels[j] = part[j] & _LOW
                levels[j + half] = part[j] >> _4
        for j in range(size):
            highest = max(highest, levels[j])
        out = values[first : min(first + size, len(values))]
        for j in range(len(out)):
            out[j] = (np.float32(levels[j]) - middle) * step
    return highest <= 2 * top
