"""Where a worker keeps which row: an open-addressing index from (table, key) to a slot, and who gives up its slot.

`heads` has a power of two of entries, at least twice as many as slots: a slot, or -1. Removal closes the gap it leaves.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.runtime.messages.row_ages import NEW_ENOUGH, NOT_KEPT
from dovetail.splitmix import GOLDEN, mix

FREE = -1
LEFT_OUT = -1
"""The slot of a row that found no place."""


@njit(cache=True, nogil=True, inline="always")
def home_of(table, key, mask):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where the search for a key of a table begins."""
    return np.int64(mix(np.uint64(key) + GOLDEN * np.uint64(table + 1)) & np.uint64(mask))


@njit(cache=True, nogil=True, inline="always")
def probe(table, key, heads, keys, tables):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where in `heads` a key of a table is, or where it would be put."""
    mask = len(heads) - 1
    at = home_of(table, key, mask)
    while heads[at] != FREE and (keys[heads[at]] != key or tables[heads[at]] != table):
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def find(table, asked, heads, keys, tables, stamps, used, oldest, newest, exact, slots, ages):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where the rows of distinct keys are kept, and how old they are, as servers are told.

    Rows of before `oldest` or after `newest` are no use.
    """
    for i in range(len(asked)):
        slot = heads[probe(table, asked[i], heads, keys, tables)]
        slots[i], ages[i] = LEFT_OUT, NOT_KEPT
        if slot != FREE and oldest <= stamps[slot] <= newest:
            slots[i] = slot
            ages[i] = NOT_KEPT + 1 + newest - stamps[slot] if exact else NEW_ENOUGH
            used[slot] = True


@njit(cache=True, nogil=True)
def place(table, asked, heads, keys, tables, stamps, used, held, turn, oldest, counts, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the slots of distinct keys, which keep their rows from now on; `counts`: how many are taken, and the hand.

    Where none is free, the hand goes round: whoever is of before `oldest`, or was not used since it last came by, gives
    up its slot. Those of this `turn` keep theirs, and what finds no slot is left out.
    """
    size, rounds = len(keys), 0
    for i in range(len(asked)):
        at = probe(table, asked[i], heads, keys, tables)
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
                    if held[hand] != turn and (not used[hand] or stamps[hand] < oldest):
                        slot = hand
                        break
                    used[hand] = False
                if slot == LEFT_OUT:
                    slots[i] = LEFT_OUT
                    continue
                remove(slot, heads, keys, tables)
                at = probe(table, asked[i], heads, keys, tables)
            heads[at] = slot
            keys[slot], tables[slot] = asked[i], table
            used[slot] = False  # a row that is asked for once is the first to go
        held[slot] = turn
        slots[i] = slot


@njit(cache=True, nogil=True)
def remove(slot, heads, keys, tables):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take what a slot keeps out of the index, moving later entries of the same run back over the gap."""
    mask = len(heads) - 1
    gap = probe(tables[slot], keys[slot], heads, keys, tables)
    at = gap
    while True:
        at = (at + 1) & mask
        other = heads[at]
        if other == FREE:
            break
        # It may fill the gap unless its home lies behind the gap, up to where it is now.
        if (at - home_of(tables[other], keys[other], mask)) & mask >= (at - gap) & mask:
            heads[gap] = other
            gap = at
    heads[gap] = FREE
