"""Sixteen bits: the upper half of a float32, rounded up or down by chance so that the mean is what went in."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.codecs.blocks import BLOCK, draw
from dovetail.codecs.codec import NOTHING_KEPT, Bytes, Floats

_16 = np.uint32(16)
_UPPER = np.uint32(0xFFFF0000)
_INFINITE = np.uint32(0x7F800000)
_QUIET = np.uint32(0x00400000)


class BFloat16:
    """The codec of bfloat16."""

    bits, number, name = 16, 1, "16 bits"

    def encoded_bytes(self, count: int) -> int:
        """Return two bytes a number."""
        return 2 * count

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write the upper halves."""
        encode_halves(values, residual, codes.view(np.uint16), seed)

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write them back with lower halves of zero."""
        decode_halves(codes.view(np.uint16), values.view(np.uint32))


@njit(cache=True, nogil=True, error_model="numpy")
def encode_halves(values, residual, codes, seed):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add 16 random bits below the upper half, and cut; what is no number stays none."""
    words = np.empty(BLOCK // 4, np.uint64)
    parts = words.view(np.uint16)
    block, cut = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.uint32)
    bits, back = block.view(np.uint32), cut.view(np.float32)
    keeps = len(residual) > 0
    for b in range(-(-len(values) // BLOCK)):
        first = b * BLOCK
        count = min(BLOCK, len(values) - first)
        draw(words, b * len(words), seed)
        for j in range(count):
            block[j] = values[first + j] + residual[first + j] if keeps else values[first + j]
        for j in range(count):
            up = np.uint32(np.uint32(bits[j] + np.uint32(parts[j])) & _UPPER)
            is_number = (bits[j] & _INFINITE) != _INFINITE
            # One that would become infinite is cut instead, and NaN stays NaN when its lower half goes.
            down = np.uint32(bits[j] & _UPPER)
            special = np.uint32(down | _QUIET) if np.uint32(bits[j] << np.uint32(9)) else down
            overflows = (up & _INFINITE) == _INFINITE
            cut[j] = (down if overflows else up) if is_number else special
        for j in range(count):
            codes[first + j] = np.uint16(cut[j] >> _16)
        if keeps:
            for j in range(count):
                rest = block[j] - back[j]
                residual[first + j] = rest if rest == rest else np.float32(0)  # noqa: PLR0124 - not for NaN


@njit(cache=True, nogil=True, error_model="numpy")
def decode_halves(codes, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Put the upper halves back."""
    for i in range(len(codes)):
        values[i] = np.uint32(codes[i]) << _16
