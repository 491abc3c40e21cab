"""Kernels over rows that are found: count, pool, sum gradients, age, expire, and what checkpoints need."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.host_tier import (
    CHANGED,
    COUNT,
    DIRTY,
    FREE,
    HOME,
    MOST_COUNTED,
    NEEDED,
    PENDING,
    SEEN,
    STATE,
    TAKEN,
)
from dovetail.embedding.index import probe
from dovetail.embedding.raw_memory import AHEAD, hint_row


@njit(cache=True, nogil=True, error_model="numpy")
def find_slots(index_keys, index_places, keys, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the slot of each key, or -1 where its row is not in the host tier; return how many are not."""
    missing = 0
    for i in range(len(keys)):
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position] if position >= 0 else 0
        if place > 0:
            slots[i] = place - 1
        else:
            slots[i] = -1
            missing += 1
    return missing


@njit(cache=True, nogil=True, error_model="numpy")
def need_slots(lines, slots, batch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Keep rows until `batch`, as long as there is room elsewhere."""
    for i in range(len(slots)):
        if slots[i] >= 0:
            lines[slots[i], NEEDED] = max(lines[slots[i], NEEDED], batch)


@njit(cache=True, nogil=True, error_model="numpy")
def count_rows(lines, slots, step):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Count one access for each of some distinct rows."""
    for i in range(len(slots)):
        line = lines[slots[i]]
        line[SEEN] = step
        line[COUNT] = min(line[COUNT] + 1, MOST_COUNTED)


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
def mark_changed(lines, slots, num_living, segment_records):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Say that rows differ from the last checkpoint and from below, where their records die."""
    for i in range(len(slots)):
        line = lines[slots[i]]
        line[STATE] = CHANGED
        line[TAKEN] = DIRTY
        if line[HOME] >= 0:
            num_living[line[HOME] // segment_records] -= 1
            line[HOME] = -1


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
def add_at(sums, inverse, begins, ends, gradients, mean):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Sum gradients as `sum_gradients` does, where row numbers are known beforehand; `sums` must be -0.0 at first."""
    for bag in range(len(begins)):
        divisor = np.float32(ends[bag] - begins[bag]) if mean else np.float32(1)
        for i in range(begins[bag], ends[bag]):
            for j in range(gradients.shape[1]):
                sums[inverse[i], j] += gradients[bag, j] / divisor


@njit(cache=True, nogil=True, error_model="numpy")
def age(index_places, counts, lines, top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Halve all access counts."""
    for position in range(len(index_places)):
        counts[position] >>= 1
    for slot in range(top):
        lines[slot, COUNT] >>= 1


@njit(cache=True, nogil=True, error_model="numpy")
def begin_cut(index_places, states, lines, top, everything):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Mark what a checkpoint has to write: every row, or those changed since the last one; return how many."""
    count = 0
    for position in range(len(index_places)):
        if index_places[position] < 0 and (everything or states[position] == CHANGED):
            states[position] = PENDING
            count += 1
    for slot in range(top):
        if lines[slot, TAKEN] != FREE and (everything or lines[slot, STATE] == CHANGED):
            lines[slot, STATE] = PENDING
            count += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def find_pending(index_keys, index_places, states, lines, start, keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Collect keys still to be written from position `start` on; return how many and where the search ended."""
    count = 0
    position = start
    while position < len(index_places) and count < len(keys):
        place = index_places[position]
        if place != 0:
            state = lines[place - 1, STATE] if place > 0 else np.int32(states[position])
            if state == PENDING:
                keys[count] = index_keys[position]
                count += 1
        position += 1
    return count, position


@njit(cache=True, nogil=True, error_model="numpy")
def describe(index_keys, index_places, seen, counts, states, lines, keys, places, saw, counted, state):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where rows lie and what is known of them; a place of 0 is a key without a row."""
    for i in range(len(keys)):
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position] if position >= 0 else 0
        places[i] = place
        if place > 0:
            line = lines[place - 1]
            saw[i], counted[i], state[i] = line[SEEN], line[COUNT], line[STATE]
        elif place < 0:
            saw[i], counted[i], state[i] = seen[position], counts[position], states[position]


@njit(cache=True, nogil=True, error_model="numpy")
def set_known(index_keys, index_places, seen, counts, states, lines, keys, saw, counted, state):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set what is known of rows that there are."""
    for i in range(len(keys)):
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position]
        if place > 0:
            line = lines[place - 1]
            line[SEEN], line[COUNT], line[STATE] = saw[i], counted[i], state[i]
        else:
            seen[position], counts[position], states[position] = saw[i], counted[i], state[i]


@njit(cache=True, nogil=True, error_model="numpy")
def find_expired(index_keys, index_places, seen, counts, lines, before, below, start, keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Collect keys last seen before step `before` or counted less than `below`; return how many and where it ended."""
    count = 0
    position = start
    while position < len(index_places) and count < len(keys):
        place = index_places[position]
        if place != 0:
            if place > 0:
                saw, counted = lines[place - 1, SEEN], lines[place - 1, COUNT]
            else:
                saw, counted = seen[position], np.int32(counts[position])
            if saw < before or counted < below:
                keys[count] = index_keys[position]
                count += 1
        position += 1
    return count, position


@njit(cache=True, nogil=True, error_model="numpy")
def all_keys(index_keys, index_places, keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write every key there is."""
    count = 0
    for position in range(len(index_keys)):
        if index_places[position] != 0:
            keys[count] = index_keys[position]
            count += 1
    return count
