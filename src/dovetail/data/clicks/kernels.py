"""The hot loops of the generator: each draws a range of samples, one sample after the other.

Draws of a sample come from its own stream, numbered by what they are for, so that a sample is the same whatever range
it is made in. Every kernel is serial and frees the interpreter lock: one thread a range.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.data.counter import draw, substream, unit
from dovetail.splitmix import mix

MOST_VALUES = 48
"""No slot of a sample has more ids than this."""
_PER_SLOT = 64  # draws set aside for a slot: up to 48 ids, and its length last
_DENSE_FROM = 1 << 20
_SCALE_4X16 = math.sqrt(3.0) / 65536.0  # the sum of four uniform 16-bit numbers has variance 4/12 * 65536**2


@njit(cache=True, nogil=True)
def draw_offsets(
    stream: np.uint64, first: int, num_samples: int, mean_values: NDArray[np.float64]
) -> NDArray[np.int64]:  # pragma: no cover
    """Return the offsets of a range of samples: 1 id a slot, or 1 + a geometric number with the slot's mean."""
    num_slots = mean_values.size
    offsets = np.empty(num_samples * num_slots + 1, dtype=np.int64)
    offsets[0] = 0
    position = 0
    for i in range(num_samples):
        own = substream(stream, np.uint64(first + i))
        for slot in range(num_slots):
            length = 1
            if mean_values[slot] > 1.0:
                u = unit(draw(own, np.uint64(slot * _PER_SLOT + _PER_SLOT - 1)))
                more = math.log(1.0 - u) / math.log(1.0 - 1.0 / mean_values[slot])
                length = min(1 + int(more), MOST_VALUES)
            offsets[position + 1] = offsets[position] + length
            position += 1
    return offsets


@njit(cache=True, nogil=True)
def draw_ids(
    stream: np.uint64,
    first: int,
    offsets: NDArray[np.int64],
    first_keys: NDArray[np.int64],
    table_of: NDArray[np.int64],
    tables: NDArray[np.float64],
) -> NDArray[np.int64]:  # pragma: no cover
    """Return the ids of a range of samples: each slot's popularity turns a uniform number into a row."""
    num_slots = first_keys.size
    num_steps = tables.shape[1] - 1
    ids = np.empty(offsets[-1], dtype=np.int64)
    for i in range((offsets.size - 1) // num_slots):
        own = substream(stream, np.uint64(first + i))
        for slot in range(num_slots):
            table = tables[table_of[slot]]
            begin = offsets[i * num_slots + slot]
            for position in range(begin, offsets[i * num_slots + slot + 1]):
                u = unit(draw(own, np.uint64(slot * _PER_SLOT + position - begin))) * num_steps
                step = int(u)
                row = table[step] + (u - step) * (table[step + 1] - table[step])
                ids[position] = first_keys[slot] + int(row)
    return ids


@njit(cache=True, nogil=True, inline="always")
def near_normal(word: np.uint64) -> float:  # pragma: no cover
    """Return the four 16-bit parts of a word added up, shifted and scaled to mean 0 and variance 1."""
    low = np.uint64(0xFFFF)
    total = float(word & low) + float((word >> np.uint64(16)) & low)
    total += float((word >> np.uint64(32)) & low) + float(word >> np.uint64(48))
    return (total - 131070.0) * _SCALE_4X16


@njit(cache=True, nogil=True)
def draw_dense(
    stream: np.uint64, first: int, num_samples: int, num_dense: int
) -> NDArray[np.float32]:  # pragma: no cover
    """Return the numbers of a range of samples, with mean 0 and variance 1."""
    dense = np.empty((num_samples, num_dense), dtype=np.float32)
    for i in range(num_samples):
        own = substream(stream, np.uint64(first + i))
        for feature in range(num_dense):
            dense[i, feature] = near_normal(draw(own, np.uint64(_DENSE_FROM + feature)))
    return dense


@njit(cache=True, nogil=True)
def draw_units(stream: np.uint64, first: int, num_samples: int) -> NDArray[np.float64]:  # pragma: no cover
    """Return one uniform number a sample."""
    units = np.empty(num_samples)
    for i in range(num_samples):
        units[i] = unit(mix(substream(stream, np.uint64(first + i))))
    return units
