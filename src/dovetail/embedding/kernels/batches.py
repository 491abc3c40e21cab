"""Kernels over the rows of a batch in the host tier: copy, pool, sum gradients, count.

Where keys are distinct no row comes twice, so that several threads may each take a stretch of a batch.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.index import probe
from dovetail.embedding.kernels.moves import hint_probe
from dovetail.embedding.kernels.raw_memory import AHEAD, fetch_soon, hint_row
from dovetail.embedding.places import NOWHERE, in_host, slot_at
from dovetail.embedding.row_metadata import CHANGED, COUNT, DIRTY, HELD, HOME, MOST_COUNTED, SEEN, STATE, TAKEN


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


@njit(cache=True, nogil=True, error_model="numpy")
def find_and_hold(index_keys, index_places, lines, keys, operation, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write each key's slot and hold its row; return how many have none in the host tier."""
    missing = 0
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position] if position >= 0 else NOWHERE
        slots[i] = slot_at(place) if in_host(place) else -1
        missing += not in_host(place)
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            fetch_soon(np.uintp(lines.ctypes.data + lines.strides[0] * np.int64(max(slots[i + AHEAD], 0))))
        if slots[i] >= 0:
            lines[slots[i], HELD] = operation
    return missing


@njit(cache=True, nogil=True, error_model="numpy")
def gather_at(rows, slots, positions, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy the values of a batch's rows at some of its positions."""
    width = out.shape[1]
    for i in range(len(positions)):
        if i + AHEAD < len(positions):
            hint_row(rows, slots[positions[i + AHEAD]], width)
        position = positions[i]
        row = rows[slots[position]]
        for j in range(width):
            out[position, j] = row[j]


@njit(cache=True, nogil=True, error_model="numpy")
def count_accesses(lines, slots, step):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Count one access for each of some rows."""
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch_soon(np.uintp(lines.ctypes.data + lines.strides[0] * np.int64(slots[i + AHEAD])))
        line = lines[slots[i]]
        line[SEEN] = step
        line[COUNT] = min(line[COUNT] + 1, MOST_COUNTED)


@njit(cache=True, nogil=True, error_model="numpy")
def mark_stepped(lines, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Say that rows differ from the last checkpoint and from below; return how many still have a record there."""
    with_record = 0
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch_soon(np.uintp(lines.ctypes.data + lines.strides[0] * np.int64(slots[i + AHEAD])))
        line = lines[slots[i]]
        line[STATE] = CHANGED
        line[TAKEN] = DIRTY
        with_record += line[HOME] >= 0
    return with_record
