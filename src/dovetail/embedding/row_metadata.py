"""What is known of a row beside its numbers: how often and when it was looked up, and whether it is saved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HOME, COUNT, SEEN, HELD, NEEDED, MARK, STATE, TAKEN = range(8)
"""Columns of a slot's line in the host tier, eight int32 numbers: the record of its copy below (-1: none), how often
and when it was looked up, which operation holds it, until which batch it is needed, a mark for sums, how it differs
from the last checkpoint, and from the tier below."""
LINE_BYTES = 8 * 4
FREE, CLEAN, DIRTY = range(3)
"""What `TAKEN` says: no row, a row as it lies below, a row that differs from below."""
SAVED, CHANGED, PENDING = range(3)
"""What `STATE` says: as in the last checkpoint, newer, or still to be written by the checkpoint under way."""
MOST_COUNTED = 1023
"""Access counts stop here; ageing halves them long before."""


class RowMetadata(NamedTuple):
    """Where rows lie (`places`) and what is known of them, one number a row each."""

    places: NDArray[np.int32]
    seen: NDArray[np.int32]
    counts: NDArray[np.int32]
    states: NDArray[np.int32]
