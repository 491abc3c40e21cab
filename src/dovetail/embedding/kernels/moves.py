"""Kernels that find the rows of a batch and move rows between tiers, a device among them: one pass each, no sorting."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.embedding.hashing import home_of
from dovetail.embedding.index import probe
from dovetail.embedding.kernels.raw_memory import AHEAD, copy_bytes, fetch_soon, hint_row
from dovetail.embedding.places import NOWHERE, at_device_slot, at_record, at_slot, in_host, on_disk, record_at, slot_at
from dovetail.embedding.row_metadata import (
    CLEAN,
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

_LISTED = np.uint8(4)
"""A bit of an index state, set only within `resolve`: the row is on the list already."""


@njit(cache=True, nogil=True, inline="always")
def hint_probe(index_keys, index_places, key):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Ask for the memory where the search for `key` begins."""
    home = home_of(key, len(index_keys))
    fetch_soon(np.uintp(index_keys.ctypes.data + 8 * home))
    fetch_soon(np.uintp(index_places.ctypes.data + 4 * home))


@njit(cache=True, nogil=True, inline="always")
def hint_known(index_places, seen, counts, position):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Ask for what the index knows of a row."""
    fetch_soon(np.uintp(index_places.ctypes.data + 4 * position))
    fetch_soon(np.uintp(seen.ctypes.data + 4 * position))
    fetch_soon(np.uintp(counts.ctypes.data + 2 * position))


@njit(cache=True, nogil=True, inline="always")
def hold(lines, slot, operation, i, codes, unique, num_unique):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Hold a row and number it where key i is the first that asks for it; return how many are numbered."""
    if lines[slot, HELD] == operation:
        codes[i] = lines[slot, MARK]
        return num_unique
    lines[slot, HELD] = operation
    lines[slot, MARK] = num_unique
    codes[i] = -num_unique - 1
    unique[num_unique] = slot
    return num_unique + 1


@njit(cache=True, nogil=True, error_model="numpy")
def resolve(  # type: ignore[no-untyped-def]  # pragma: no cover
    index_keys, index_places, states, lines, keys, operation, slots, codes, unique, absent, absent_at, below
):
    """Find the rows of a batch and hold those in the host tier.

    `slots` gets each key's slot or -1, `unique` the distinct slots, `codes` each key's number u among these, as -u - 1
    where the key comes first. `absent` gets the keys that have no slot, `absent_at` their positions in the index (-1:
    no row), `below` the distinct positions. Returns how many there are of: unique, absent, below, keys without a row.
    """
    # One loop each for the index, the lines and the rest: each waits for one kind of memory, asked for ahead.
    num_unique, num_absent, num_below, num_new = 0, 0, 0, 0
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        position = probe(index_keys, index_places, keys[i])
        place = index_places[position] if position >= 0 else NOWHERE
        slots[i] = slot_at(place) if in_host(place) else -1
        absent[num_absent] = i
        absent_at[num_absent] = position if on_disk(place) else -1
        num_absent += not in_host(place)
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            fetch_soon(np.uintp(lines.ctypes.data + lines.strides[0] * np.int64(max(slots[i + AHEAD], 0))))
        if slots[i] >= 0:
            num_unique = hold(lines, slots[i], operation, i, codes, unique, num_unique)
    for i in range(num_absent):
        position = absent_at[i]
        if position < 0:
            num_new += 1
        elif not states[position] & _LISTED:
            states[position] |= _LISTED
            below[num_below] = position
            num_below += 1
    for i in range(num_below):
        states[below[i]] &= ~_LISTED
    return num_unique, num_absent, num_below, num_new


@njit(cache=True, nogil=True, error_model="numpy")
def settle(index_places, lines, operation, absent, absent_at, slots, codes, unique, num_unique):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Finish what `resolve` began once rows were brought up; return how many distinct ones there are in all."""
    for i in range(len(absent)):
        if absent_at[i] < 0:
            continue
        slot = slot_at(index_places[absent_at[i]])
        slots[absent[i]] = slot
        num_unique = hold(lines, slot, operation, absent[i], codes, unique, num_unique)
    return num_unique


@njit(cache=True, nogil=True, error_model="numpy")
def move_up(index_keys, index_places, seen, counts, states, lines, host_keys, positions, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Point the index at slots, and hand over what it knew; the record below stays as a copy."""
    for i in range(len(positions)):
        if i + AHEAD < len(positions):
            hint_known(index_places, seen, counts, positions[i + AHEAD])
        position, slot = positions[i], slots[i]
        line = lines[slot]
        line[HOME] = record_at(index_places[position])
        line[COUNT], line[SEEN], line[STATE] = counts[position], seen[position], states[position]
        line[HELD], line[NEEDED], line[MARK], line[TAKEN] = 0, 0, 0, CLEAN
        host_keys[slot] = index_keys[position]
        index_places[position] = at_slot(slot)


@njit(cache=True, nogil=True, error_model="numpy")
def dirty_first(lines, host_keys, slots, keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Put slots whose rows differ from below in front, and write their keys; return how many there are."""
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        if lines[slot, TAKEN] == DIRTY:
            slots[i], slots[count] = slots[count], slot
            count += 1
    for i in range(len(slots)):
        keys[i] = host_keys[slots[i]]
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def move_down(index_keys, index_places, seen, counts, states, lines, keys, slots, records):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Point the index at records below, hand over what the slots' lines know, and free the slots.

    `records` has those of the first slots; the others' are the copies that lie below already.
    """
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            hint_probe(index_keys, index_places, keys[i + AHEAD])
            hint_known(index_places, seen, counts, home_of(keys[i + AHEAD], len(index_keys)))
        position = probe(index_keys, index_places, keys[i])
        line = lines[slots[i]]
        index_places[position] = at_record(records[i] if i < len(records) else line[HOME])
        seen[position], counts[position], states[position] = line[SEEN], line[COUNT], line[STATE]
        line[TAKEN] = FREE


@njit(cache=True, nogil=True, error_model="numpy")
def find_living(index_keys, index_places, lines, keys, first_record, living):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write which of the records from `first_record` on the index still points at; return how many."""
    count = 0
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        position = probe(index_keys, index_places, keys[i])
        if position >= 0:
            place = index_places[position]
            # A row on a device has no record, and its place reads as a number that no record has.
            record = lines[slot_at(place), HOME] if in_host(place) else record_at(place)
            if record == first_record + i:
                living[count] = i
                count += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def repoint(index_keys, index_places, lines, keys, records):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Follow rows whose records were moved within the tier below."""
    for i in range(len(keys)):
        position = probe(index_keys, index_places, keys[i])
        if in_host(index_places[position]):
            lines[slot_at(index_places[position]), HOME] = records[i]
        else:
            index_places[position] = at_record(records[i])


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
def take_from_host(index_places, lines, host_rows, positions, up, slots, rows, known, freed, homes, first, last):  # type: ignore[no-untyped-def]  # pragma: no cover
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
        known[k, 0], known[k, 1], known[k, 2] = line[SEEN], line[COUNT], line[STATE]
        homes[k] = line[HOME]
        line[TAKEN] = FREE
        index_places[positions[i]] = at_device_slot(slots[i])
        freed[k] = slot


@njit(cache=True, nogil=True, error_model="numpy")
def take_from_disk(index_places, seen, counts, states, positions, below, slots, known):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Point the index at device slots for rows that were read from disk, and write what is known of them."""
    for k in range(len(below)):
        i = below[k]
        position = positions[i]
        known[k, 0], known[k, 1], known[k, 2] = seen[position], counts[position], states[position]
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
    index_keys, index_places, lines, host_keys, host_rows, keys, slots, rows, known, first, last
):
    """Copy rows that come down to free slots of the host tier with what is known of them, and point the index there."""
    for i in range(first, last):
        if i + AHEAD < last:
            hint_probe(index_keys, index_places, keys[i + AHEAD])
        slot = slots[i]
        copy_bytes(host_rows[slot].ctypes.data, rows[i].ctypes.data, 4 * host_rows.shape[1])
        line = lines[slot]
        line[HOME], line[HELD], line[NEEDED], line[MARK], line[TAKEN] = -1, 0, 0, 0, DIRTY
        line[SEEN], line[COUNT], line[STATE] = known[i, 0], known[i, 1], known[i, 2]
        host_keys[slot] = keys[i]
        index_places[probe(index_keys, index_places, keys[i])] = at_slot(slot)
