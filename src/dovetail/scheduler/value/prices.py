"""Costates where the table of rooms is too large: a price for the workers of each type instead.

On a large cluster one job more or less moves the price of workers little, so in place of the table

    B_(k-1)[C - o] = W_(k-1) - price . o,        p_k = min over o of (w_k + price . o) / s_k(o)

with the prices at which the k - 1 last jobs ask for no more workers than there are. Prices are renewed whenever the
jobs counted have grown by a twentieth.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.view import FloatArray, IntArray

RENEW = 0.05
"""The share by which jobs grow between two renewals: how finely prices are followed."""
SWEEPS, HALVINGS = 3, 24
"""How often each type's price is found again, and how finely."""


@njit(cache=True, nogil=True)
def priced_costates(
    order: IntArray,
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    speeds: FloatArray,
    weights: FloatArray,
    capacity: IntArray,
) -> FloatArray:
    """Return p of every job, `order` going from the job that will be done last to the first."""
    prices = np.zeros(len(capacity))
    worth = np.zeros(len(order))
    renew_at = 1
    for place in range(len(order)):
        if place == renew_at:
            _clear(order[:place], first, types, workers, speeds, worth, capacity, prices)
            renew_at = max(place + 1, int(place * (1.0 + RENEW)))
        job = order[place]
        least = np.inf
        for offer in range(first[job], first[job + 1]):
            least = min(least, (weights[job] + prices[types[offer]] * workers[offer]) / speeds[offer])
        worth[job] = least
    return worth


@njit(cache=True, nogil=True)
def _clear(
    jobs: IntArray,
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    speeds: FloatArray,
    worth: FloatArray,
    capacity: IntArray,
    prices: FloatArray,
) -> None:
    """Set prices, type by type, so that the best offers of `jobs` take no more workers than there are."""
    for _ in range(SWEEPS):
        for kind in range(len(prices)):
            low, high = 0.0, max(2.0 * prices[kind], 1e-12)
            prices[kind] = 0.0
            if _asked(jobs, first, types, workers, speeds, worth, prices, kind) <= capacity[kind]:
                continue
            prices[kind] = high
            while _asked(jobs, first, types, workers, speeds, worth, prices, kind) > capacity[kind]:
                low, high = high, 2.0 * high
                prices[kind] = high
            for _ in range(HALVINGS):
                prices[kind] = (low + high) / 2.0
                if _asked(jobs, first, types, workers, speeds, worth, prices, kind) > capacity[kind]:
                    low = prices[kind]
                else:
                    high = prices[kind]
            prices[kind] = high


@njit(cache=True, nogil=True)
def _asked(
    jobs: IntArray,
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    speeds: FloatArray,
    worth: FloatArray,
    prices: FloatArray,
    kind: int,
) -> int:
    """Return how many workers of a type are in the jobs' best offers at these prices."""
    total = 0
    for job in jobs:
        best, best_value = -1, 0.0
        for offer in range(first[job], first[job + 1]):
            value = worth[job] * speeds[offer] - prices[types[offer]] * workers[offer]
            if value > best_value:
                best, best_value = offer, value
        if best >= 0 and types[best] == kind:
            total += workers[best]
    return total
