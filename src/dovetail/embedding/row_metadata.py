"""What a slot of the host tier knows of its row: a line of eight int32 numbers."""

from __future__ import annotations

HOME, COUNT, SEEN, HELD, NEEDED, MARK, STATE, TAKEN = range(8)
"""Columns: the record of its copy below (-1: none), how often and when it was looked up, which operation holds it,
until which batch it is needed, a mark for sums, how it differs from the last checkpoint, and from the tier below."""
LINE_BYTES = 8 * 4
FREE, CLEAN, DIRTY = range(3)
"""What `TAKEN` says: no row, a row as it lies below, a row that differs from below."""
SAVED, CHANGED, PENDING = range(3)
"""What `STATE` says: as in the last checkpoint, newer, or still to be written by the checkpoint under way."""
MOST_COUNTED = 1023
"""Access counts stop here; ageing halves them long before."""
