"""Numbers for keys, in the order in which they come: the hash map behind distinct keys, sums of gradients and key sets.

`known` has the keys by their numbers; `heads`, a power of two of entries and at least twice as many as keys, has a
number where a search ends, -1 where there is none yet. Nothing is ever taken out.

Two maps are other than this one, and have to be: the index of a table (`index`) has its places beside the keys, any
size that a budget leaves, and deletion; a worker's row cache looks for a key of a table, and gives slots up.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.splitmix import mix


@njit(cache=True, nogil=True, inline="always")
def head_of(key, heads, known):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where in `heads` the number of a key is, or would be put."""
    mask = len(heads) - 1
    at = np.int64(mix(np.uint64(key)) & np.uint64(mask))
    while heads[at] >= 0 and known[heads[at]] != key:
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def find_numbers(keys, heads, known, numbers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the number of each key, or -1."""
    for i in range(len(keys)):
        numbers[i] = heads[head_of(keys[i], heads, known)]


@njit(cache=True, nogil=True)
def number_keys(keys, heads, known, count, numbers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the number of each key, new ones getting the next; return how many there are then."""
    for i in range(len(keys)):
        at = head_of(keys[i], heads, known)
        number = heads[at]
        if number < 0:
            number = count
            heads[at] = count
            known[count] = keys[i]
            count += 1
        numbers[i] = number
    return count


@njit(cache=True, nogil=True)
def number_batches(keys, bounds, heads, known, numbers, ends):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Do so for batch after batch, each from 0 on: batch b is keys[bounds[b]:bounds[b + 1]].

    Its distinct keys lie at known[ends[b]:ends[b + 1]]; `heads` has room for the largest.
    """
    total = 0
    for b in range(len(bounds) - 1):
        heads[:] = -1
        ends[b] = total
        begin, end = bounds[b], bounds[b + 1]
        total += number_keys(keys[begin:end], heads, known[total:], 0, numbers[begin:end])
    ends[len(bounds) - 1] = total
