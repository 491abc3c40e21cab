"""Numbers from the normal distribution, each a function of a key and of its own number: noise that nobody can foretell.

A pair of numbers comes of one block of AES-256, whose input is a counter of 128 bits. Who lacks the key learns nothing
of one pair from all others, so noise that an attacker can work out (of a gradient that he knows) says nothing of any
other. There is no state: whoever knows key and counter makes the same numbers, in any order and any place.

The block's two halves are uniform numbers of 53 bits, u in (0, 1] and v in [0, 1), of which (Box and Muller, 1958)

    sqrt(-2 ln u) cos(2 pi v)   and   sqrt(-2 ln u) sin(2 pi v)

are independent and normal. The tails are there up to 8.5 standard deviations, beyond which one number in 10^17 lies.
Logarithm, sine and cosine are sums of their series, to the last bits of float64: so all processors come to the same,
and work on several at once.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

PAIR = 2
"""Numbers that a counter gives."""
AT_ONCE = 1 << 15
"""Counters whose numbers are made in one go, so that they stay in the caches."""
_BLOCK_BYTES = 16
_UNIT = 2.0**-53
_LN_2, _HALF_PI = math.log(2.0), 0.5 * math.pi
_11, _52 = np.uint64(11), np.uint64(52)
_MANTISSA, _ONE_BITS = np.uint64((1 << 52) - 1), np.uint64(1023 << 52)
Counters = NDArray[np.uint64]
"""One row of two words each."""


def normals(key: bytes, counters: Counters) -> NDArray[np.float64]:
    """Return the two numbers of each counter, one pair after the other."""
    found = np.empty(PAIR * len(counters))
    for first in range(0, len(counters), AT_ONCE):
        part = counters[first : first + AT_ONCE]
        pair_up(bits_of(key, part), np.empty(len(part)), found[PAIR * first : PAIR * (first + len(part))])
    return found


def bits_of(key: bytes, counters: Counters) -> Counters:
    """Return the blocks of counters under a key of 32 bytes."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - private runs alone

    # Every counter is there once, and nothing is hidden in them: this is a table of a random function, no message.
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305
    room = np.empty(counters.size * 8 + _BLOCK_BYTES, dtype=np.uint8)
    encryptor.update_into(np.ascontiguousarray(counters, dtype="<u8").view(np.uint8).ravel().data, room.data)
    return room[: counters.size * 8].view("<u8").reshape(counters.shape)


@njit(cache=True, nogil=True, error_model="numpy")
def pair_up(bits, lengths, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the two normal numbers of each block of bits; `lengths` is room for as many numbers."""
    count = len(lengths)
    words = lengths.view(np.uint64)
    for i in range(count):
        lengths[i] = np.float64(np.int64(bits[i, 0] >> _11) + 1) * _UNIT
    for i in range(count):
        # u = m 2^e with m in [1, 2), or, to have m near 1, in [0.7, 1.4); ln m = 2 artanh((m - 1) / (m + 1)).
        exponent = np.int64(words[i] >> _52) - 1023
        words[i] = (words[i] & _MANTISSA) | _ONE_BITS
        is_large = lengths[i] > math.sqrt(2.0)
        m = lengths[i] * (0.5 if is_large else 1.0)
        whole = np.float64(exponent + (1 if is_large else 0))
        s = (m - 1.0) / (m + 1.0)
        t = s * s
        series = 1.0 / 21 + t * (1.0 / 23)
        series = 1.0 / 15 + t * (1.0 / 17 + t * (1.0 / 19 + t * series))
        series = 1.0 / 9 + t * (1.0 / 11 + t * (1.0 / 13 + t * series))
        series = 1.0 + t * (1.0 / 3 + t * (1.0 / 5 + t * (1.0 / 7 + t * series)))
        lengths[i] = np.sqrt(max(0.0, -2.0 * (whole * _LN_2 + 2.0 * s * series)))
    for i in range(count):
        # A quarter turn is 1: the nearest whole one is taken off, so that the rest is at most an eighth of a turn.
        turns = np.float64(np.int64(bits[i, 1] >> _11)) * (4.0 * _UNIT)
        quarter = np.int64(turns + 0.5)
        x = (turns - np.float64(quarter)) * _HALF_PI
        t = x * x
        sine = -1.0 / 39916800 + t * (1.0 / 6227020800 + t * (-1.0 / 1307674368000))
        sine = x * (1.0 + t * (-1.0 / 6 + t * (1.0 / 120 + t * (-1.0 / 5040 + t * (1.0 / 362880 + t * sine)))))
        cosine = -1.0 / 3628800 + t * (1.0 / 479001600 + t * (-1.0 / 87178291200 + t * (1.0 / 20922789888000)))
        cosine = 1.0 + t * (-0.5 + t * (1.0 / 24 + t * (-1.0 / 720 + t * (1.0 / 40320 + t * cosine))))
        is_odd = quarter & 1 == 1
        across, along = (sine if is_odd else cosine), (cosine if is_odd else sine)
        out[2 * i] = lengths[i] * (-across if (quarter + 1) & 2 == 2 else across)
        out[2 * i + 1] = lengths[i] * (-along if quarter & 2 == 2 else along)
