"""What exchanges do row by row: rising keys are gone through once, side by side."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def merge_rows(keys, total, more, values, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return rising keys of both, and `total + scale * values` of each, where what one has not is zero."""
    count, i, j = 0, 0, 0
    while i < len(keys) or j < len(more):
        is_first = j == len(more) or (i < len(keys) and keys[i] <= more[j])
        is_second = i == len(keys) or (j < len(more) and more[j] <= keys[i])
        i, j, count = i + is_first, j + is_second, count + 1
    width = values.shape[1]
    all_keys = np.empty(count, dtype=np.int64)
    sums = np.zeros((count, width), dtype=np.float32)
    i = j = 0
    for at in range(count):
        is_first = j == len(more) or (i < len(keys) and keys[i] <= more[j])
        is_second = i == len(keys) or (j < len(more) and more[j] <= keys[i])
        all_keys[at] = keys[i] if is_first else more[j]
        if is_first:
            for place in range(width):
                sums[at, place] = total[i, place]
            i += 1
        if is_second:
            for place in range(width):
                sums[at, place] += scale * values[j, place]
            j += 1
    return all_keys, sums


@njit(cache=True, nogil=True)
def agree_rows(keys, delta, slots, live, base, sent, rounds, touched, own_keys, own):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Bring changes into the base of known rows and into live ones; `own`, of some keys, are not on their way any more.

    Rows that nothing is on its way of, and that were not touched, are what was agreed on, exactly.
    """
    width, mine = live.shape[1], 0
    for i in range(len(keys)):
        slot = slots[i]
        is_own = mine < len(own_keys) and own_keys[mine] == keys[i]
        if is_own:
            rounds[slot] -= 1
        is_settled = slot < 0 or (rounds[slot] == 0 and not touched[slot])
        for place in range(width):
            before = base[slot, place] if slot >= 0 else live[i, place]
            agreed = before + delta[i, place]
            now = live[i, place] + (agreed - before)
            if is_own:
                now -= own[mine, place]
                sent[slot, place] -= own[mine, place]
            if slot >= 0:
                base[slot, place] = agreed
            live[i, place] = agreed if is_settled else now
        mine += is_own
    return mine
