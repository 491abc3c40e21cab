"""Kernels over what is known of rows: in slots' lines for those in the host tier, in the index for all others.

For rows on a device the index has what was written there last; the tier itself knows better.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.index import probe
from dovetail.embedding.kernels.moves import hint_probe
from dovetail.embedding.kernels.raw_memory import AHEAD
from dovetail.embedding.places import NOWHERE, in_host, on_disk, slot_at
from dovetail.embedding.row_metadata import (
    CHANGED,
    COUNT,
    DIRTY,
    FREE,
    HOME,
    NEEDED,
    PENDING,
    SEEN,
    STATE,
    TAKEN,
)


@njit(cache=True, nogil=True, error_model="numpy")
def find_slots(index_keys, index_places, keys, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the slot of each key, or -1 where its row is not in the host tier."""
    for i in range(len(keys)):
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position] if position >= 0 else NOWHERE
        slots[i] = slot_at(place) if in_host(place) else -1


@njit(cache=True, nogil=True, error_model="numpy")
def need_slots(lines, slots, batch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Keep rows until `batch`, as long as there is room elsewhere."""
    for i in range(len(slots)):
        if slots[i] >= 0:
            lines[slots[i], NEEDED] = max(lines[slots[i], NEEDED], batch)


@njit(cache=True, nogil=True, error_model="numpy")
def age(index_places, counts, lines, top):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Halve all access counts."""
    for position in range(len(index_places)):
        counts[position] >>= 1
    for slot in range(top):
        lines[slot, COUNT] >>= 1


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
def mark_pending(index_places, states, lines, top, everything):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Mark what a checkpoint has to write: every row, or those changed since the last one; return how many."""
    count = 0
    for position in range(len(index_places)):
        if on_disk(index_places[position]) and (everything or states[position] == CHANGED):
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
        if place != NOWHERE:
            state = lines[slot_at(place), STATE] if in_host(place) else np.int32(states[position])
            if state == PENDING:
                keys[count] = index_keys[position]
                count += 1
        position += 1
    return count, position


@njit(cache=True, nogil=True, error_model="numpy")
def read_metadata(index_keys, index_places, seen, counts, states, lines, keys, places, saw, counted, state):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where rows lie and what is known of them; a key without a row lies nowhere."""
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position] if position >= 0 else NOWHERE
        places[i] = place
        if in_host(place):
            line = lines[slot_at(place)]
            saw[i], counted[i], state[i] = line[SEEN], line[COUNT], line[STATE]
        elif place != NOWHERE:
            saw[i], counted[i], state[i] = seen[position], counts[position], states[position]


@njit(cache=True, nogil=True, error_model="numpy")
def write_metadata(index_keys, index_places, seen, counts, states, lines, keys, saw, counted, state):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set what is known of rows that there are."""
    for i in range(len(keys)):
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position]
        if in_host(place):
            line = lines[slot_at(place)]
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
        if place != NOWHERE:
            if in_host(place):
                saw, counted = lines[slot_at(place), SEEN], lines[slot_at(place), COUNT]
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
        if index_places[position] != NOWHERE:
            keys[count] = index_keys[position]
            count += 1
    return count
