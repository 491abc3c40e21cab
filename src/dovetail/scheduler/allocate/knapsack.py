"""Multiple-choice knapsack by dynamic programming over the workers used of every type at once.

State: how many workers of each type may be used, all types flattened into one number. Job by job,

    best_j[state] = max(best_{j-1}[state],
                        max over options (type t, w workers, value v) of best_{j-1}[state - w of t] + v)

where the first term is left out when every job must be served. Only the values are kept: which option gave a value is
found again, from the last job to the first, by the sum that equals it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.view import FloatArray, IntArray

IMPOSSIBLE = -1e300


@njit(cache=True, nogil=True)
def raise_to(after: FloatArray, before: FloatArray, value: float) -> None:
    """Let every entry be at least its partner in `before` plus a value; slices, so that the loop is vectorised."""
    for place in range(len(after)):
        worth = before[place] + value
        after[place] = worth if worth > after[place] else after[place]


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
    best = np.zeros((num_jobs + 1, size))
    for job in range(num_jobs):
        before, after = best[job], best[job + 1]
        if required:
            after[:] = IMPOSSIBLE
        else:
            after[:] = before
        for option in range(first[job], first[job + 1]):
            stride, step = strides[types[option]], workers[option] * strides[types[option]]
            block, value = stride * (capacity[types[option]] + 1), values[option]
            for start in range(0, size, block):
                raise_to(after[start + step : start + block], before[start : start + block - step], value)
    chosen_of = np.full(num_jobs, -1, np.int64)
    state = size - 1
    total = best[num_jobs, state]
    if total <= IMPOSSIBLE / 2:
        return chosen_of, IMPOSSIBLE
    for job in range(num_jobs - 1, -1, -1):
        if not required and best[job + 1, state] == best[job, state]:
            continue
        for option in range(first[job], first[job + 1]):
            step = workers[option] * strides[types[option]]
            fits = (state // strides[types[option]]) % (capacity[types[option]] + 1) >= workers[option]
            if fits and best[job, state - step] + values[option] == best[job + 1, state]:
                chosen_of[job] = option
                state -= step
                break
    return chosen_of, total
