"""ChaCha20 (RFC 8439), and numbers from the normal distribution made of it: noise that cannot be told from other noise.

A block of 64 bytes is a function of a key of 32 bytes and a counter of 16. Who lacks the key learns nothing of one
block from all others, so noise that an attacker can work out (of a gradient that he knows) says nothing of any other.
There is no state: whoever knows key and counter makes the same numbers, in any order and any place.

Two normal numbers come of two uniform ones of 53 bits (Box and Muller, 1958):

    sqrt(-2 ln u) cos(2 pi v),  sqrt(-2 ln u) sin(2 pi v),   u in (0, 1], v in [0, 1)

so the tails are there up to 8.5 standard deviations, beyond which one number in 10^17 lies.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

KEY_WORDS = 8
NORMALS_A_BLOCK = 8
_DOUBLE_ROUNDS = 10
_TURN = 2.0 * math.pi
_UNIT = 2.0**-53
_11, _32 = np.uint64(11), np.uint64(32)


def key_words(key: bytes) -> NDArray[np.uint32]:
    """Return a key of 32 bytes as the words that kernels take."""
    if len(key) != 4 * KEY_WORDS:
        raise ValueError(f"a key of {len(key)} bytes, expected {4 * KEY_WORDS}")
    return np.frombuffer(key, dtype="<u4").astype(np.uint32)


@njit(cache=True, nogil=True, inline="always")
def _turned(word, left):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a word turned by so many bits."""
    return np.uint32((np.uint32(word) << np.uint32(left)) | (np.uint32(word) >> np.uint32(32 - left)))


@njit(cache=True, nogil=True, inline="always")
def _quarter(a, b, c, d):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return four words after a quarter round."""
    a = np.uint32(a + b)
    d = _turned(np.uint32(d ^ a), 16)
    c = np.uint32(c + d)
    b = _turned(np.uint32(b ^ c), 12)
    a = np.uint32(a + b)
    d = _turned(np.uint32(d ^ a), 8)
    c = np.uint32(c + d)
    b = _turned(np.uint32(b ^ c), 7)
    return a, b, c, d


@njit(cache=True, nogil=True)
def fill_block(key, n0, n1, n2, n3, block):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the 16 words of the block of a counter of four words."""
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    x0, x1, x2, x3 = np.uint32(0x61707865), np.uint32(0x3320646E), np.uint32(0x79622D32), np.uint32(0x6B206574)
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12, x13, x14, x15 = np.uint32(n0), np.uint32(n1), np.uint32(n2), np.uint32(n3)
    for _ in range(_DOUBLE_ROUNDS):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    block[0], block[1] = np.uint32(x0 + np.uint32(0x61707865)), np.uint32(x1 + np.uint32(0x3320646E))
    block[2], block[3] = np.uint32(x2 + np.uint32(0x79622D32)), np.uint32(x3 + np.uint32(0x6B206574))
    block[4], block[5], block[6], block[7] = x4 + k0, x5 + k1, x6 + k2, x7 + k3
    block[8], block[9], block[10], block[11] = x8 + k4, x9 + k5, x10 + k6, x11 + k7
    block[12], block[13] = np.uint32(x12 + np.uint32(n0)), np.uint32(x13 + np.uint32(n1))
    block[14], block[15] = np.uint32(x14 + np.uint32(n2)), np.uint32(x15 + np.uint32(n3))


@njit(cache=True, nogil=True, error_model="numpy")
def fill_normals(key, n0, n1, n2, n3, block, normals):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the eight normal numbers of a counter; `block` is room for 16 words."""
    fill_block(key, n0, n1, n2, n3, block)
    for pair in range(4):
        first = np.uint64(block[4 * pair]) | (np.uint64(block[4 * pair + 1]) << _32)
        second = np.uint64(block[4 * pair + 2]) | (np.uint64(block[4 * pair + 3]) << _32)
        u = np.float64((first >> _11) + np.uint64(1)) * _UNIT
        angle = np.float64(second >> _11) * _UNIT * _TURN
        length = math.sqrt(-2.0 * math.log(u))
        normals[2 * pair], normals[2 * pair + 1] = length * math.cos(angle), length * math.sin(angle)
