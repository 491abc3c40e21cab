"""A checksum of payloads at the speed of memory: four streams of words, each word decides all bits of its stream."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.splitmix import GOLDEN, mix

AT_WORD = 3
"""Where a payload has its checksum: whatever is there counts as zero."""
_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)
_47 = np.uint64(47)


@njit(cache=True, nogil=True)
def checksum(words):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return 64 bits that no change of a single word leaves as they are, and other changes leave once in 2 ** 64.

    There are at least four words.
    """
    a, b, c, d = GOLDEN, mix(GOLDEN + _1), mix(GOLDEN + _2), mix(GOLDEN + _3)
    d ^= words[AT_WORD]  # so that the loop, which brings it in, brings in nothing
    whole = len(words) // 4 * 4
    for i in range(0, whole, 4):
        a = (a ^ words[i]) * _FACTOR
        b = (b ^ words[i + 1]) * _FACTOR
        c = (c ^ words[i + 2]) * _FACTOR
        d = (d ^ words[i + 3]) * _FACTOR
        a, b, c, d = a ^ (a >> _47), b ^ (b >> _47), c ^ (c >> _47), d ^ (d >> _47)
    for i in range(whole, len(words)):
        a = mix((a ^ words[i]) * _FACTOR)
    return mix(a + mix(b + mix(c + mix(d + np.uint64(len(words))))))
