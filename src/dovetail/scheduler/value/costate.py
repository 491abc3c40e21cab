"""Costates: the delay, of all jobs together, that one unit of a job's work causes.

Let jobs be done in some order, the last one first in the count. While the k last of them are there, whatever runs, they
are delayed by the sum of their weights W_k a second; in the fluid optimum what runs works off exactly as much (the
Hamilton-Jacobi-Bellman condition). With offers o of speed s and the room C of the cluster that says, from the last job
to the first,

    W_k = W_(k-1) + w_k
    p_k = min over o of (W_k - B_(k-1)[C - o]) / s_k(o)
    B_k[c] = max(B_(k-1)[c], max over o of B_(k-1)[c - o] + p_k s_k(o))

where B_k[c] is the most delay that the k last jobs can work off a second within the room c, and B_k[C] = W_k. For
speed-ups w^q this is heSRPT; it holds for any curves and several types.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.allocate.knapsack import raise_to
from dovetail.scheduler.view import FloatArray, IntArray


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
