"""What rows take of a device's memory."""

from __future__ import annotations

INDEX_ENTRIES_A_SLOT = 2
SLOT_BYTES = 8 + 4 + 2 + 1 + 4 + 4 * INDEX_ENTRIES_A_SLOT
"""Beside a row: key, last step seen, count, state, last batch that needs it, entries of the index."""


def slot_bytes(row_width: int) -> int:
    """Return what a row of so many numbers, values and state, takes with all that belongs to it."""
    return row_width * 4 + SLOT_BYTES


def rows_in(device_bytes: int, row_width: int) -> int:
    """Return how many rows fit; one more slot is nobody's: kernels that have nothing to do write there."""
    return device_bytes // slot_bytes(row_width) - 1


def bytes_for(num_rows: int, row_width: int) -> int:
    """Return the least device_bytes with room for so many rows."""
    return (num_rows + 1) * slot_bytes(row_width)
