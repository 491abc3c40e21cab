"""Kernels that hand rows of the host tier and the index over to a device tier, and take them back."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.index import probe
from dovetail.embedding.move_kernels import hint_probe
from dovetail.embedding.places import NOWHERE, at_device_slot, at_slot, in_host, on_disk, slot_at
from dovetail.embedding.raw_memory import AHEAD, copy_bytes, fetch_soon, hint_row
from dovetail.embedding.slot_line import (
    COUNT,
    DIRTY,
    FREE,
    HELD,
    HOME,
    MARK,
    NEEDED,
    SAVED,
    SEEN,
    STATE,
    TAKEN,
)

IN_HOST, ON_DISK, ABSENT = range(3)
"""Where a row is that goes up."""


@njit(cache=True, nogil=True, error_model="numpy")
def sort_out(index_keys, index_places, keys, positions, kinds, first, last):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where keys `first` to `last` are in the index, and which of `IN_HOST`, `ON_DISK` and `ABSENT` they are."""
    for i in range(first, last):
        if i + AHEAD < last:
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        position = probe(index_keys, index_places, keys[i])
        positions[i] = position
        place = index_places[position] if position >= 0 else NOWHERE
        kinds[i] = IN_HOST if in_host(place) else ON_DISK if on_disk(place) else ABSENT


@njit(cache=True, nogil=True, error_model="numpy")
def take_from_host(index_places, lines, host_rows, positions, up, slots, rows, facts, freed, homes, first, last):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy rows of the host tier to `rows` with what is known of them, and point the index at device slots.

    `freed` gets the host slots that are free now, `homes` the records of their copies below.
    """
    for k in range(first, last):
        if k + AHEAD < last:
            soon = slot_at(index_places[positions[up[k + AHEAD]]])
            fetch_soon(np.uintp(lines.ctypes.data + lines.strides[0] * np.int64(soon)))
            hint_row(host_rows, soon, host_rows.shape[1])
        i = up[k]
        slot = slot_at(index_places[positions[i]])
        line = lines[slot]
        copy_bytes(rows[k].ctypes.data, host_rows[slot].ctypes.data, 4 * host_rows.shape[1])
        facts[k, 0], facts[k, 1], facts[k, 2] = line[SEEN], line[COUNT], line[STATE]
        homes[k] = line[HOME]
        line[TAKEN] = FREE
        index_places[positions[i]] = at_device_slot(slots[i])
        freed[k] = slot


@njit(cache=True, nogil=True, error_model="numpy")
def take_from_disk(index_places, seen, counts, states, positions, below, slots, facts):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Point the index at device slots for rows that were read from disk, and write what is known of them."""
    for k in range(len(below)):
        i = below[k]
        position = positions[i]
        facts[k, 0], facts[k, 1], facts[k, 2] = seen[position], counts[position], states[position]
        states[position] = SAVED
        index_places[position] = at_device_slot(slots[i])


@njit(cache=True, nogil=True, error_model="numpy")
def add_absent(index_keys, index_places, keys, positions, slots, absent):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Give keys that have no row one at a slot of the device; `positions` says where the search for each ended."""
    size = len(index_keys)
    for k in range(len(absent)):
        if k + AHEAD < len(absent):
            soon = -positions[absent[k + AHEAD]] - 1
            fetch_soon(np.uintp(index_keys.ctypes.data + 8 * soon))
            fetch_soon(np.uintp(index_places.ctypes.data + 4 * soon))
        i = absent[k]
        position = -positions[i] - 1
        while index_places[position] != NOWHERE:  # another one of these keys was faster
            position += 1
            if position == size:
                position = 0
        index_keys[position] = keys[i]
        index_places[position] = at_device_slot(slots[i])


@njit(cache=True, nogil=True, error_model="numpy")
def put_into_host(  # type: ignore[no-untyped-def]  # pragma: no cover
    index_keys, index_places, lines, host_keys, host_rows, keys, slots, rows, facts, first, last
):
    """Copy rows that come down to free slots of the host tier with what is known of them, and point the index there."""
    for i in range(first, last):
        if i + AHEAD < last:
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        slot = slots[i]
        copy_bytes(host_rows[slot].ctypes.data, rows[i].ctypes.data, 4 * host_rows.shape[1])
        line = lines[slot]
        line[HOME], line[HELD], line[NEEDED], line[MARK], line[TAKEN] = -1, 0, 0, 0, DIRTY
        line[SEEN], line[COUNT], line[STATE] = facts[i, 0], facts[i, 1], facts[i, 2]
        host_keys[slot] = keys[i]
        index_places[probe(index_keys, index_places, keys[i])] = at_slot(slot)


@njit(cache=True, nogil=True, error_model="numpy")
def which_have_rows(index_keys, index_places, keys, have):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write which keys have a row, in whichever tier."""
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        position = probe(index_keys, index_places, keys[i])
        have[i] = position >= 0 and index_places[position] != NOWHERE
