"""Sixteen bits: the upper half of a float32, rounded up or down by chance so that the mean is what went in.

With a residual it is rounded to the nearest: half the error, and the residual brings what is missing.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.codecs.blocks import draw
from dovetail.codecs.codec import NOTHING_KEPT, Bytes, Floats

_16 = np.uint32(16)
_UPPER = np.uint32(0xFFFF0000)
_INFINITE = np.uint32(0x7F800000)
_QUIET = np.uint32(0x00400000)
_FRACTION = np.uint32(0x007FFFFF)
_HALFWAY = np.uint32(0x8000)
_NUM_WORDS = 16
_PART = 256


class BFloat16:
    """The codec of bfloat16."""

    bits, number, name = 16, 1, "16 bits"

    def encoded_bytes(self, count: int) -> int:
        """Return two bytes a number."""
        return 2 * count

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write the upper halves."""
        if len(residual):
            encode_nearest(values, residual, codes.view(np.uint16))
        else:
            encode_halves(np.ascontiguousarray(values).view(np.uint32), codes.view(np.uint16), seed)

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write them back with lower halves of zero."""
        decode_halves(codes.view(np.uint16), values.view(np.uint32))


@njit(cache=True, nogil=True, error_model="numpy")
def encode_halves(bits, codes, seed):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add 16 random bits below the upper half, and cut; what is no number stays none, what is one stays one."""
    words = np.empty(_NUM_WORDS, np.uint64)
    parts = words.view(np.uint16)
    size = len(parts)
    for b in range(-(-len(bits) // size)):
        draw(words, b * _NUM_WORDS, seed)
        first = b * size
        part, out = bits[first : first + size], codes[first : first + size]
        for j in range(len(part)):
            word = part[j]
            up = np.uint32(np.uint32(word + np.uint32(parts[j])) & _UPPER)
            down = np.uint32(word & _UPPER)
            if np.uint32(word & _INFINITE) == _INFINITE:
                up = np.uint32(down | _QUIET) if np.uint32(word & _FRACTION) else down
            elif np.uint32(up & _INFINITE) == _INFINITE:
                up = down
            out[j] = np.uint16(up >> _16)


@njit(cache=True, nogil=True, error_model="numpy")
def encode_nearest(values, residual, codes):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the nearest upper halves of values + residual; leave what is missing, nothing of what is no number."""
    total, cut = np.empty(_PART, np.float32), np.empty(_PART, np.uint32)
    bits, sent = total.view(np.uint32), cut.view(np.float32)
    for first in range(0, len(values), _PART):
        part, kept, out = values[first : first + _PART], residual[first : first + _PART], codes[first : first + _PART]
        for j in range(len(part)):
            total[j] = part[j] + kept[j]
        for j in range(len(part)):
            word = bits[j]
            up = np.uint32(np.uint32(word + _HALFWAY) & _UPPER)
            down = np.uint32(word & _UPPER)
            none = np.uint32(down | _QUIET) if np.uint32(word & _FRACTION) else down
            up = down if np.uint32(up & _INFINITE) == _INFINITE else up
            cut[j] = none if np.uint32(word & _INFINITE) == _INFINITE else up
        for j in range(len(part)):
            out[j] = np.uint16(cut[j] >> _16)
        for j in range(len(part)):
            rest = total[j] - sent[j]
            kept[j] = rest if rest == rest else np.float32(0)  # noqa: PLR0124 - not so for NaN


@njit(cache=True, nogil=True, error_model="numpy")
def decode_halves(codes, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Put the upper halves back."""
    for i in range(len(codes)):
        values[i] = np.uint32(codes[i]) << _16
