"""Multiple-choice knapsack by dynamic programming over the workers used of every type at once.

State: how many workers of each type may be used, all types flattened into one number. Job by job,

    best_j[state] = max(best_{j-1}[state],
                        max over options (type t, w workers, value v) of best_{j-1}[state - w of t] + v)

where the first term is left out when every job must be served.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.view import FloatArray, IntArray

IMPOSSIBLE = -1e300


@njit(cache=True, nogil=True)
def solve_knapsack(
    first: IntArray, types: IntArray, workers: IntArray, values: FloatArray, capacity: IntArray, required: bool
) -> tuple[IntArray, float]:
    """Return for each job the option chosen (-1 = none) and the sum of values; IMPOSSIBLE where none serves all."""
    num_jobs = len(first) - 1
    strides = np.empty(len(capacity), np.int64)
    size = 1
    for kind in range(len(capacity)):
        strides[kind] = size
        size *= capacity[kind] + 1
    best = np.zeros(size)
    taken = np.full((num_jobs, size), -1, np.int32)
    for job in range(num_jobs):
        after = np.full(size, IMPOSSIBLE) if required else best.copy()
        chosen = taken[job]
        for option in range(first[job], first[job + 1]):
            stride, span = strides[types[option]], capacity[types[option]] + 1
            step, value = workers[option], values[option]
            block = stride * span
            for start in range(0, size, block):
                for state in range(start + step * stride, start + block):
                    worth = best[state - step * stride] + value
                    if worth > after[state]:
                        after[state] = worth
                        chosen[state] = option
        best = after
    chosen_of = np.full(num_jobs, -1, np.int64)
    state = size - 1
    total = best[state]
    if total <= IMPOSSIBLE / 2:
        return chosen_of, IMPOSSIBLE
    for job in range(num_jobs - 1, -1, -1):
        option = taken[job, state]
        if option >= 0:
            chosen_of[job] = option
            state -= workers[option] * strides[types[option]]
    return chosen_of, total
