"""Costates: the delay, of all jobs together, that one unit of a job's work causes; by a table of rooms or by prices.

Let jobs be done in some order, the last one first in the count. While the k last of them are there, whatever runs, they
are delayed by the sum of their weights W_k a second; in the fluid optimum what runs works off exactly as much (the
Hamilton-Jacobi-Bellman condition). With offers o of speed s and the room C of the cluster that says, from the last job
to the first,

    W_k = W_(k-1) + w_k
    p_k = min over o of (W_k - B_(k-1)[C - o]) / s_k(o)
    B_k[c] = max(B_(k-1)[c], max over o of B_(k-1)[c - o] + p_k s_k(o))

where B_k[c] is the most delay that the k last jobs can work off a second within the room c, and B_k[C] = W_k. For
speed-ups w^q this is heSRPT; it holds for any curves and several types.

All delay still to come is then V = sum of p_k left_k, so of two orders the one with the smaller V is better. The order
of the least possible times is nearly the best one where curves are alike; where it costs little, neighbours are
swapped while that makes V smaller (`ordered_costates`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.allocate.bound import clear
from dovetail.scheduler.allocate.knapsack import raise_to
from dovetail.scheduler.view import FloatArray, IntArray

RENEW = 0.05
"""The share by which jobs grow between two renewals: how finely prices are followed."""


def last_first(least_s: FloatArray, again_s: FloatArray) -> IntArray:
    """Return the jobs from the one that will be done last to the first: the largest least possible time first.

    Stopping job i for job j delays i by j's time and by i's own restart, `again_s`, and brings j forward by i's time:
    i comes first where least_i - again_i < least_j. Jobs that wait have nothing to pay again.
    """
    order: IntArray = np.argsort(again_s - least_s, kind="stable")
    return order


@njit(cache=True, nogil=True)
def costates(
    order: IntArray,
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    speeds: FloatArray,
    weights: FloatArray,
    capacity: IntArray,
) -> FloatArray:
    """Return p of every job, `order` going from the job that will be done last to the first; rooms are one table."""
    strides = np.empty(len(capacity), np.int64)
    size = 1
    for kind in range(len(capacity)):
        strides[kind] = size
        size *= capacity[kind] + 1
    worked_off, after = np.zeros(size), np.zeros(size)
    worth = np.zeros(len(order))
    delay = 0.0
    for job in order:
        delay += weights[job]
        least = np.inf
        for offer in range(first[job], first[job + 1]):
            others = worked_off[size - 1 - workers[offer] * strides[types[offer]]]
            least = min(least, (delay - others) / speeds[offer])
        worth[job] = least
        after[:] = worked_off
        for offer in range(first[job], first[job + 1]):
            stride = strides[types[offer]]
            block, step = stride * (capacity[types[offer]] + 1), workers[offer] * stride
            value = least * speeds[offer]
            for start in range(0, size, block):
                raise_to(after[start + step : start + block], worked_off[start : start + block - step], value)
        worked_off, after = after, worked_off
    return worth


@njit(cache=True, nogil=True)
def ordered_costates(
    order: IntArray,
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    speeds: FloatArray,
    weights: FloatArray,
    capacity: IntArray,
    left: FloatArray,
    again_s: FloatArray,
) -> FloatArray:
    """Return the costates of the best order that swapping neighbours leads to, from `order` on.

    Jobs that would pay unlike restarts to come back stay in their order: V does not know what a stop costs.
    """
    order = order.copy()
    worth = costates(order, first, types, workers, speeds, weights, capacity)
    delay = (worth * left).sum()
    improved = True
    while improved:
        improved = False
        for place in range(len(order) - 1):
            one, other = order[place], order[place + 1]
            if again_s[one] != again_s[other]:
                continue
            order[place], order[place + 1] = other, one
            swapped = costates(order, first, types, workers, speeds, weights, capacity)
            if (swapped * left).sum() < delay * (1.0 - 1e-9):
                worth, delay, improved = swapped, (swapped * left).sum(), True
            else:
                order[place], order[place + 1] = one, other
    return worth


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
    """Return p of every job, `order` going from the job that will be done last to the first.

    On a large cluster one job more or less moves the price of workers little, so in place of the table

        B_(k-1)[C - o] = W_(k-1) - price . o,        p_k = min over o of (w_k + price . o) / s_k(o)

    with the prices at which the k - 1 last jobs ask for no more workers than there are. Prices are renewed whenever the
    jobs counted have grown by a twentieth: some twenty times as many jobs are asked as there are, however many.
    """
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
