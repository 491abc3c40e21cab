"""Costates where the table of rooms is too large: a price for the workers of each type instead.

On a large cluster one job more or less moves the price of workers little, so in place of the table

    B_(k-1)[C - o] = W_(k-1) - price . o,        p_k = min over o of (w_k + price . o) / s_k(o)

with the prices at which the k - 1 last jobs ask for no more workers than there are. Prices are renewed whenever the
jobs counted have grown by a twentieth: some twenty times as many jobs are asked as there are, however many.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.allocate.bound import clear
from dovetail.scheduler.view import FloatArray, IntArray

RENEW = 0.05
"""The share by which jobs grow between two renewals: how finely prices are followed."""


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
    values = np.zeros(len(speeds))
    renew_at = 1
    for place in range(len(order)):
        if place == renew_at:
            clear(order[:place], first, types, workers, values, capacity, prices)
            renew_at = max(place + 1, int(place * (1.0 + RENEW)))
        job = order[place]
        least = np.inf
        for offer in range(first[job], first[job + 1]):
            least = min(least, (weights[job] + prices[types[offer]] * workers[offer]) / speeds[offer])
        worth[job] = least
        for offer in range(first[job], first[job + 1]):
            values[offer] = least * speeds[offer]
    return worth
