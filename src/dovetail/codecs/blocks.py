"""What codecs with a scale a block share: whole blocks for their kernels, and a block's scale and noise.

A block is 8 to 64 numbers, a multiple of 8; the last one is filled up, and what fills it is left out again. A scale is
the upper half of a float32 (bfloat16). It is NaN where a number of the block is infinite or NaN, so that what went
wrong at the sender is seen at the receiver, and 0 where no number is above 2 ** -100.

Kernels see arrays of one row a block: a fixed number of columns lets loops run on vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.codecs.codec import NOTHING_KEPT, Bytes, Floats
from dovetail.splitmix import GOLDEN, mix
from dovetail.transport import WireError

Scales = NDArray[np.uint16]
BLOCK = 64
"""Numbers that share a scale, where nobody says otherwise."""
NOT_A_NUMBER = np.uint16(0x7FC0)
_LARGEST = np.uint32(0x7F7F)
_INFINITE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SMALLEST = np.uint32(0x0D800000)  # 2 ** -100
_16 = np.uint32(16)
_ROUND_UP = np.uint32(0xFFFF)
_PART = np.float32(1.0 / 65536.0)
_HALF_PART = np.float32(0.5 / 65536.0)


class BlockCodec:
    """A codec of so many bits with a scale for every `block` numbers: all scales first, then the codes."""

    bits: ClassVar[int]
    number: ClassVar[int]
    name: ClassVar[str]
    encode_blocks: Callable[[Floats, Floats, Scales, Bytes, int, int], None]
    """Writes scales and codes of whole blocks, the first of which has that number; a residual may have no rows."""
    decode_blocks: Callable[[Scales, Bytes, Floats], int]
    """Writes the numbers of whole blocks; returns the highest code that there was."""
    highest_code: ClassVar[int]
    """Of those that stand for something."""

    def __init__(self, *, block: int = BLOCK) -> None:
        """Choose how many numbers share a scale."""
        self.block = block

    def encoded_bytes(self, count: int) -> int:
        """Return how many bytes numbers become."""
        return -(-count // self.block) * (2 + self.block * self.bits // 8)

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write scales and codes of all blocks, the last one filled up."""
        scales, rows = self._parts(codes, len(values))
        whole, end = len(values) // self.block, len(values) // self.block * self.block
        keeps = len(residual) > 0
        kept = residual[: end if keeps else 0].reshape(-1, self.block)
        self.encode_blocks(values[:end].reshape(-1, self.block), kept, scales[:whole], rows[:whole], seed, 0)
        rest = len(values) - end
        if rest:
            filled, kept = np.zeros((2, 1, self.block), dtype=np.float32)
            filled[0, :rest] = values[end:]
            if keeps:
                kept[0, :rest] = residual[end:]
                # What fills the block up must not make the mean magnitude smaller, which is a scale of one bit.
                filled[0, rest:] = np.abs(filled[0, :rest] + kept[0, :rest]).mean()
            self.encode_blocks(filled, kept[:keeps], scales[whole:], rows[whole:], seed, whole)
            if keeps:
                residual[end:] = kept[0, :rest]

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write the numbers that the codes of all blocks stand for."""
        scales, rows = self._parts(codes, len(values))
        whole, end = len(values) // self.block, len(values) // self.block * self.block
        highest = self.decode_blocks(scales[:whole], rows[:whole], values[:end].reshape(-1, self.block))
        if len(values) - end:
            filled = np.empty((1, self.block), dtype=np.float32)
            highest = max(highest, self.decode_blocks(scales[whole:], rows[whole:], filled))
            values[end:] = filled[0, : len(values) - end]
        if highest > self.highest_code:
            raise WireError(f"a payload of {self.name} has a code that stands for nothing")

    def _parts(self, codes: Bytes, count: int) -> tuple[Scales, Bytes]:
        """Return scales, and codes by block."""
        blocks = -(-count // self.block)
        return codes[: 2 * blocks].view(np.uint16), codes[2 * blocks :].reshape(blocks, self.block * self.bits // 8)


@njit(cache=True, nogil=True, error_model="numpy")
def take_block(values, residual, b, block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write a block of numbers, with what was kept of them, where it can be worked on."""
    if len(residual):
        for j in range(len(block)):
            block[j] = values[b, j] + residual[b, j]
    else:
        for j in range(len(block)):
            block[j] = values[b, j]


@njit(cache=True, nogil=True, error_model="numpy")
def keep_block(residual, b, block, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Keep a block of which nothing goes: all of it, or nothing where it holds what is no number."""
    if len(residual):
        for j in range(len(block)):
            residual[b, j] = block[j] if scale == 0 else np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def largest_of(words):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the largest magnitude among float32 numbers, given and returned as their bits; NaN is above all."""
    top = np.uint32(0)
    for j in range(len(words)):
        magnitude = np.uint32(words[j] & _MAGNITUDE)
        top = magnitude if magnitude > top else top
    return top


@njit(cache=True, nogil=True, error_model="numpy")
def scale_above(top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the scale, as its bits, that is the least at or above a magnitude, given as its bits."""
    if top >= _INFINITE:
        return NOT_A_NUMBER
    if top < _SMALLEST:
        return np.uint16(0)
    return np.uint16(min(np.uint32(np.uint32(top + _ROUND_UP) >> _16), _LARGEST))


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
