"""Who clicks on what, known exactly: the log-odds of a click as a function of a sample.

Every id has a vector of four numbers, each uniform with mean 0 and variance 1, drawn from (seed, id). With h the sum of
the vectors of a sample's ids, each weighted by its slot, plus a linear map of its numbers, the families are

    logistic     h[0]
    deep         relu(h[0]) + relu(h[1]) - relu(h[2]) - relu(h[3])         an embedding and fully connected layers
    two-tables   deep + a second deep term over the first 5 slots, their ids taken modulo 100
    dot          h[0] + the products of the vectors of every two slots     what DLRM multiplies out

then scaled to the wanted spread and shifted to the wanted click rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.data.counter import substream
from dovetail.data.errors import DataError
from dovetail.errors import did_you_mean

SMALL_TABLE_ROWS = 100
SMALL_TABLE_SLOTS = 5
_UNIT_VARIANCE = 2 * 3.0**0.5 / 65536.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The parameters of the truth beside the vectors of the ids."""

    stream: np.uint64
    slots: NDArray[np.float64]
    """[s]: how much each slot counts."""
    dense: NDArray[np.float64]
    """[d, 4]."""


@njit(cache=True, nogil=True)
def slot_sums(
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    num_slots: int,
    stream: np.uint64,
    weights: NDArray[np.float64],
    modulus: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # pragma: no cover
    """Return, for each sample, the weighted sum of its ids' vectors, and the sum of its slots' squared lengths.

    With v the vector of a slot, the products of every two slots are (|sum v|^2 - sum |v|^2) / 2. Only the first
    `weights.size` of the `num_slots` slots count; a `modulus` above 0 is applied to the ids first.
    """
    num_samples = (offsets.size - 1) // num_slots
    sums = np.zeros((num_samples, 4))
    squares = np.zeros(num_samples)
    low = np.uint64(0xFFFF)
    for i in range(num_samples):
        for slot in range(weights.size):
            a = b = c = d = 0.0
            bag = i * num_slots + slot
            for position in range(offsets[bag], offsets[bag + 1]):
                key = ids[position] % modulus if modulus > 0 else ids[position]
                word = substream(stream, np.uint64(key))
                a += float(word & low)
                b += float((word >> np.uint64(16)) & low)
                c += float((word >> np.uint64(32)) & low)
                d += float(word >> np.uint64(48))
            middle = 32767.5 * (offsets[bag + 1] - offsets[bag])
            scale = weights[slot] * _UNIT_VARIANCE
            a, b, c, d = (a - middle) * scale, (b - middle) * scale, (c - middle) * scale, (d - middle) * scale
            sums[i, 0] += a
            sums[i, 1] += b
            sums[i, 2] += c
            sums[i, 3] += d
            squares[i] += a * a + b * b + c * c + d * d
    return sums, squares


Family = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], Weights], NDArray[np.float64]]


def raw_score(
    family: str,
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    dense: NDArray[np.float32],
    weights: Weights,
) -> NDArray[np.float64]:
    """Return the family's score of each sample, before it is scaled and shifted."""
    return FAMILIES[known_family(family)](ids, offsets, dense, weights)


def known_family(family: str) -> str:
    """Return `family` if there is such a truth."""
    if family not in FAMILIES:
        raise DataError(f"there is no truth `{family}`", hint=did_you_mean(family, FAMILIES))
    return family


def _hidden(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return h of each sample, and the sum of its slots' squared lengths."""
    sums, squares = slot_sums(ids, offsets, weights.slots.size, weights.stream, weights.slots, 0)
    return sums + dense @ weights.dense, squares


def _bent(hidden: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return two ramps less two ramps."""
    ramps = np.maximum(hidden, 0.0)
    return np.asarray(ramps[:, 0] + ramps[:, 1] - ramps[:, 2] - ramps[:, 3])


def _logistic(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    return _hidden(ids, offsets, dense, weights)[0][:, 0]


def _deep(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    """Return a network of one hidden layer over embeddings."""
    return _bent(_hidden(ids, offsets, dense, weights)[0])


def _two_tables(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    """Return the deep score, and another over a few slots with few rows."""
    num_slots = weights.slots.size
    few = weights.slots[:SMALL_TABLE_SLOTS]
    stream = np.uint64(weights.stream ^ np.uint64(0xFFFF))
    small, _ = slot_sums(ids, offsets, num_slots, stream, few, SMALL_TABLE_ROWS)
    share = np.sqrt(np.sum(weights.slots**2) / np.sum(few**2))
    return np.asarray(_deep(ids, offsets, dense, weights) + 0.5 * share * _bent(small))


def _dot(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    """Return a weighted sum of features and of the products of every two slots (the numbers count as one more slot)."""
    sums, squares = slot_sums(ids, offsets, weights.slots.size, weights.stream, weights.slots, 0)
    bottom = dense @ weights.dense
    total = sums + bottom
    squares = squares + np.sum(bottom**2, axis=1)
    return np.asarray(total[:, 0] + 0.5 * (np.sum(total**2, axis=1) - squares))


FAMILIES: dict[str, Family] = {"logistic": _logistic, "deep": _deep, "two-tables": _two_tables, "dot": _dot}
