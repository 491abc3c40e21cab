"""Random orders, compiled: what NumPy's `Generator(Philox(stream)).permutation(size)` gives, block by block.

Orders of runs are made of these numbers, and a run that goes on needs the very same ones: they are worked out here, by
the published rules, and change with no version of a library. (SeedSequence: O'Neill, 2015; Philox: Salmon et al., 2011;
Fisher and Yates' shuffle, each draw masked and drawn again where it is too large.)
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_U32 = np.uint64(0xFFFFFFFF)
_32, _16 = np.uint64(32), np.uint64(16)
_INIT_A, _MULT_A = np.uint64(0x43B0D7E5), np.uint64(0x931E8875)
_INIT_B, _MULT_B = np.uint64(0x8B51F9DD), np.uint64(0x58F38DED)
_MIX_LEFT, _MIX_RIGHT = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)
_PHILOX_0, _PHILOX_1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ROUNDS = 10


@njit(cache=True, nogil=True, inline="always")
def _high(a: np.uint64, b: np.uint64) -> np.uint64:  # pragma: no cover
    """Return the upper half of a product of 128 bits."""
    a_low, a_high = a & _U32, a >> _32
    b_low, b_high = b & _U32, b >> _32
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    other = a_low * b_high + (middle & _U32)
    return a_high * b_high + (middle >> _32) + (other >> _32)


@njit(cache=True, nogil=True)
def _philox_key(stream: np.uint64) -> tuple[np.uint64, np.uint64]:  # pragma: no cover
    """Return the key that `SeedSequence(stream)` gives Philox."""
    pool = np.zeros(4, dtype=np.uint64)
    factor = _INIT_A
    for i in range(4):
        value = np.uint64(0)
        if i == 0:
            value = stream & _U32
        elif i == 1:
            value = stream >> _32
        value ^= factor
        factor = (factor * _MULT_A) & _U32
        value = (value * factor) & _U32
        pool[i] = value ^ (value >> _16)
    for source in range(4):
        for target in range(4):
            if source != target:
                value = pool[source] ^ factor
                factor = (factor * _MULT_A) & _U32
                value = (value * factor) & _U32
                value ^= value >> _16
                mixed = (_MIX_LEFT * pool[target] - _MIX_RIGHT * value) & _U32
                pool[target] = mixed ^ (mixed >> _16)
    factor = _INIT_B
    for i in range(4):
        value = pool[i] ^ factor
        factor = (factor * _MULT_B) & _U32
        value = (value * factor) & _U32
        pool[i] = value ^ (value >> _16)
    return pool[0] | (pool[1] << _32), pool[2] | (pool[3] << _32)


@njit(cache=True, nogil=True)
def shuffle_into(stream: np.uint64, first: int, places: NDArray[np.int64]) -> None:  # pragma: no cover
    """Fill `places` with the numbers from `first` on, in the random order of a stream."""
    size = places.size
    for i in range(size):
        places[i] = first + i
    key_0, key_1 = _philox_key(stream)
    drawn = np.empty(8, dtype=np.uint64)
    left, counter, mask = 0, np.uint64(0), _U32  # the last: as many bits as the numbers still to be drawn have
    for i in range(size - 1, 0, -1):
        while np.uint64(i) <= mask >> np.uint64(1):
            mask >>= np.uint64(1)
        while True:
            if left == 0:
                counter += np.uint64(1)
                a, b, c, d = counter, np.uint64(0), np.uint64(0), np.uint64(0)
                k_0, k_1 = key_0, key_1
                for _ in range(_ROUNDS):
                    high_0, low_0 = _high(_PHILOX_0, a), _PHILOX_0 * a
                    high_1, low_1 = _high(_PHILOX_1, c), _PHILOX_1 * c
                    a, b, c, d = high_1 ^ b ^ k_0, low_1, high_0 ^ d ^ k_1, low_0
                    k_0 += _WEYL_0
                    k_1 += _WEYL_1
                drawn[0], drawn[1], drawn[2], drawn[3] = a & _U32, a >> _32, b & _U32, b >> _32
                drawn[4], drawn[5], drawn[6], drawn[7] = c & _U32, c >> _32, d & _U32, d >> _32
                left = 8
            j = np.int64(drawn[8 - left] & mask)
            left -= 1
            if j <= i:
                break
        places[i], places[j] = places[j], places[i]


@njit(cache=True, nogil=True)
def shuffle_blocks(
    streams: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    skip: int,
    places: NDArray[np.int64],
) -> None:  # pragma: no cover
    """Fill `places` with the samples of blocks one after the other, each shuffled, from the `skip`-th on."""
    done = -skip
    for i in range(streams.size):
        size = sizes[i]
        if done >= 0 and done + size <= places.size:
            shuffle_into(streams[i], firsts[i], places[done : done + size])
        else:
            block = np.empty(size, dtype=np.int64)
            shuffle_into(streams[i], firsts[i], block)
            for j in range(max(0, -done), min(size, places.size - done)):
                places[done + j] = block[j]
        done += size
