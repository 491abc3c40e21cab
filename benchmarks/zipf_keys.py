"""Batches of keys as skewed as those of advertising logs: every slot has a Zipf law over its own permuted rows.

Labels follow from the keys: each row has a hidden weight, a hash of its key, and the chance of a click is the logistic
function of their sum. So there is something to learn, in hot and in cold rows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Batches:
    """Keys [batches, batch * slots], and labels [batches, batch]."""

    keys: NDArray[np.int64]
    labels: NDArray[np.int64]


def make_batches(
    num_batches: int, batch: int, slots: int, rows_per_slot: int, *, exponent: float, seed: int, threads: int
) -> Batches:
    """Return distinct batches; slot s has the keys s * rows_per_slot and so on."""
    keys = np.empty((num_batches, batch, slots), dtype=np.int64)

    def fill_slot(slot: int) -> None:
        rng = np.random.default_rng([seed, slot])
        order = rng.permutation(rows_per_slot).astype(np.int32)
        for first in range(0, num_batches, 64):
            part = keys[first : first + 64, :, slot]
            ranks = np.minimum(rng.zipf(exponent, part.size) - 1, rows_per_slot - 1)
            part[:] = (order[ranks].astype(np.int64) + slot * rows_per_slot).reshape(part.shape)

    def labels_of(number: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([seed, slots, number])
        chance = 1 / (1 + np.exp(-hidden_weights(keys[number]).sum(axis=1) * 2 / slots**0.5))
        return (rng.random(batch) < chance).astype(np.int64)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill_slot, range(slots)))
        labels = np.stack(list(pool.map(labels_of, range(num_batches))))
    return Batches(keys.reshape(num_batches, -1), labels)


def rows_by_count(batches: Batches, num_batches: int, slots: int, rows_per_slot: int) -> NDArray[np.int64]:
    """Return how many rows were in one, two, ... of the first batches, by that number."""
    by_slot = batches.keys[:num_batches].reshape(num_batches, -1, slots)

    def of_slot(slot: int) -> NDArray[np.int64]:
        counts = np.zeros(rows_per_slot, dtype=np.int64)
        for keys in by_slot[:, :, slot]:
            counts[np.unique(keys) - slot * rows_per_slot] += 1
        return np.bincount(counts, minlength=num_batches + 1)

    with ThreadPoolExecutor() as pool:
        found: NDArray[np.int64] = sum(pool.map(of_slot, range(slots)))  # type: ignore[assignment]
    found[0] = 0
    return found


def hidden_weights(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weight of each row, about uniform in [-1.7, 1.7)."""
    mixed = (keys.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(40)).astype(np.float64) * (3.4 / 2**24) - 1.7
