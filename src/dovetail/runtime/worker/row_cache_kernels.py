"""Where a worker keeps which row: an open-addressing index from (table, key) to a slot, and who gives up its slot.

`heads` has a power of two of entries, at least twice as many as slots: a slot, or -1. Removal closes the gap it leaves.
What is known of a slot lies side by side in `lines`, so that a search touches memory twice.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.runtime.messages.row_ages import NEW_ENOUGH, NOT_KEPT
from dovetail.splitmix import GOLDEN, mix

FREE = -1
LEFT_OUT = -1
"""The slot of a row that found no place."""
KEY, TABLE, STAMP, TURN = range(4)
"""Of a line: whose row it is, as of when, and twice the turn until which it stays, plus one where used lately."""


@njit(cache=True, nogil=True, inline="always")
def home_of(table, key, mask):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where the search for a key of a table begins."""
    return np.int64(mix(np.uint64(key) + GOLDEN * np.uint64(table + 1)) & np.uint64(mask))


@njit(cache=True, nogil=True, inline="always")
def probe(table, key, heads, lines):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where in `heads` a key of a table is, or where it would be put."""
    mask = len(heads) - 1
    at = home_of(table, key, mask)
    while heads[at] != FREE and (lines[heads[at], KEY] != key or lines[heads[at], TABLE] != table):
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def find(table, asked, heads, lines, oldest, newest, exact, slots, ages):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where the rows of distinct keys are kept, and how old they are, as servers are told.

    Rows of before `oldest` or after `newest` are no use.
    """
    for i in range(len(asked)):
        slot = heads[probe(table, asked[i], heads, lines)]
        slots[i], ages[i] = LEFT_OUT, NOT_KEPT
        if slot != FREE and oldest <= lines[slot, STAMP] <= newest:
            slots[i] = slot
            ages[i] = NOT_KEPT + 1 + newest - lines[slot, STAMP] if exact else NEW_ENOUGH
            lines[slot, TURN] |= 1


@njit(cache=True, nogil=True)
def stay(lines, slots, turn, stamp, exact):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Have rows that are used keep their slots through a turn; exact ones are as of `stamp` from now on."""
    for i in range(len(slots)):
        lines[slots[i], TURN] = 2 * turn + 1
        if exact:
            lines[slots[i], STAMP] = stamp


@njit(cache=True, nogil=True)
def place(table, asked, heads, lines, turn, stamp, oldest, counts, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the slots of distinct keys, which keep their rows from now on; `counts`: how many are taken, and the hand.

    Where none is free, the hand goes round: whoever is of before `oldest`, or was not used since it last came by, gives
    up its slot. Those of this `turn` keep theirs, and what finds no slot is left out.
    """
    size, rounds = len(lines), 0
    for i in range(len(asked)):
        at = probe(table, asked[i], heads, lines)
        slot = heads[at]
        if slot == FREE:
            if counts[0] < size:
                slot = counts[0]
                counts[0] += 1
            else:
                slot = LEFT_OUT
                while rounds < 2 * size + len(asked):
                    rounds += 1
                    hand = counts[1]
                    counts[1] = (hand + 1) % size
                    is_used = lines[hand, TURN] & 1
                    if lines[hand, TURN] >> 1 != turn and (not is_used or lines[hand, STAMP] < oldest):
                        slot = hand
                        break
                    lines[hand, TURN] -= is_used
                if slot == LEFT_OUT:
                    slots[i] = LEFT_OUT
                    continue
                remove(slot, heads, lines)
                at = probe(table, asked[i], heads, lines)
            heads[at] = slot
            lines[slot, KEY], lines[slot, TABLE] = asked[i], table
            lines[slot, TURN] = 0  # not used again yet: a row that is asked for once is the first to go
        lines[slot, STAMP] = stamp
        lines[slot, TURN] = 2 * turn + (lines[slot, TURN] & 1)
        slots[i] = slot


@njit(cache=True, nogil=True)
def remove(slot, heads, lines):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take what a slot keeps out of the index, moving later entries of the same run back over the gap."""
    mask = len(heads) - 1
    gap = probe(lines[slot, TABLE], lines[slot, KEY], heads, lines)
    at = gap
    while True:
        at = (at + 1) & mask
        other = heads[at]
        if other == FREE:
            break
        # It may fill the gap unless its home lies behind the gap, up to where it is now.
        if (at - home_of(lines[other, TABLE], lines[other, KEY], mask)) & mask >= (at - gap) & mask:
            heads[gap] = other
            gap = at
    heads[gap] = FREE
