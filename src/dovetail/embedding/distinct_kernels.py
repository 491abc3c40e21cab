"""Kernels over distinct keys: no row comes twice, so that several threads may each take a stretch of a batch."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.index import probe
from dovetail.embedding.move_kernels import hint_probe
from dovetail.embedding.places import NOWHERE, in_host, slot_at
from dovetail.embedding.raw_memory import AHEAD, fetch_soon, hint_row
from dovetail.embedding.slot_line import CHANGED, COUNT, DIRTY, HELD, HOME, MOST_COUNTED, SEEN, STATE, TAKEN


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
