"""Kernels over rows that are found: copy, pool, sum gradients."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.raw_memory import AHEAD, hint_row


@njit(cache=True, nogil=True, error_model="numpy")
def gather(rows, slots, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy the values at `slots`, leaving out rows where the slot is -1."""
    width = out.shape[1]
    for i in range(len(slots)):
        if i + AHEAD < len(slots) and slots[i + AHEAD] >= 0:
            hint_row(rows, slots[i + AHEAD], width)
        if slots[i] >= 0:
            row = rows[slots[i]]
            for j in range(width):
                out[i, j] = row[j]


@njit(cache=True, nogil=True, error_model="numpy")
def pool(rows, slots, begins, ends, mean, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the sum, or the mean, of each bag's rows in the order of the bag; an empty bag gives zeros."""
    width = out.shape[1]
    for bag in range(len(begins)):
        total = out[bag]
        for j in range(width):
            total[j] = np.float32(0)
        for i in range(begins[bag], ends[bag]):
            row = rows[slots[i]]
            for j in range(width):
                total[j] += row[j]
        if mean and ends[bag] - begins[bag] > 1:
            for j in range(width):
                total[j] /= np.float32(ends[bag] - begins[bag])


@njit(cache=True, nogil=True, error_model="numpy")
def sum_gradients(codes, begins, ends, gradients, mean, sums):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Sum the gradients of each distinct row, in the order of the batch.

    Bag b has the ids begins[b] to ends[b], and each of them gets the bag's gradient (divided by their number for a
    mean). An id's code is the number u of its row, or -u - 1 where the row comes first.
    """
    width = gradients.shape[1]
    for bag in range(len(begins)):
        gradient = gradients[bag]
        divisor = np.float32(ends[bag] - begins[bag]) if mean else np.float32(1)
        for i in range(begins[bag], ends[bag]):
            if codes[i] < 0:
                total = sums[-codes[i] - 1]
                for j in range(width):
                    total[j] = gradient[j] / divisor
            elif mean:
                total = sums[codes[i]]
                for j in range(width):
                    total[j] += gradient[j] / divisor
            else:
                total = sums[codes[i]]
                for j in range(width):
                    total[j] += gradient[j]


@njit(cache=True, nogil=True, error_model="numpy")
def add_at(sums, inverse, begins, ends, gradients, mean):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Sum gradients as `sum_gradients` does, where row numbers are known beforehand; `sums` must be -0.0 at first."""
    for bag in range(len(begins)):
        divisor = np.float32(ends[bag] - begins[bag]) if mean else np.float32(1)
        for i in range(begins[bag], ends[bag]):
            for j in range(gradients.shape[1]):
                sums[inverse[i], j] += gradients[bag, j] / divisor
