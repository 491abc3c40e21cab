"""Where a row lies, as one int32 of the index: nowhere, or at a number that one of three tiers gave out.

    place > 0               slot place - 1 of the host tier
    -2**30 <= place < 0     record -place - 1 of the disk tier
    place < -2**30          slot -place - 1 - 2**30 of the device tier
    place = 0               nowhere: the key has no row

Nobody else knows these numbers. Every function takes one place or a whole array, and compiles into kernels. Numba's
cache looks at a kernel's own file alone: after a change here, delete the `__pycache__` of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import register_jitable

NOWHERE = 0
MOST_SLOTS = 2**31 - 2
"""Slots that the host tier may have; records on disk and slots on a device are fewer:"""
MOST_RECORDS = MOST_DEVICE_SLOTS = 2**30
_DEVICE = 2**30
_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = register_jitable(inline="always")


@_inlined
def at_slot(slot):  # type: ignore[no-untyped-def]
    """Return the place of a row at a slot of the host tier."""
    return slot + 1


@_inlined
def at_record(record):  # type: ignore[no-untyped-def]
    """Return the place of a row at a record of the disk tier."""
    return -record - 1


@_inlined
def at_device_slot(slot):  # type: ignore[no-untyped-def]
    """Return the place of a row at a slot of the device tier."""
    return -slot - 1 - _DEVICE


@_inlined
def in_host(place):  # type: ignore[no-untyped-def]
    """Say whether the row is in the host tier."""
    return place > 0


@_inlined
def on_disk(place):  # type: ignore[no-untyped-def]
    """Say whether the row is in the disk tier."""
    return (place < 0) & (place >= -_DEVICE)


@_inlined
def on_device(place):  # type: ignore[no-untyped-def]
    """Say whether the row is in the device tier."""
    return place < -_DEVICE


@_inlined
def slot_at(place):  # type: ignore[no-untyped-def]
    """Return the slot of a row that is in the host tier."""
    return place - 1


@_inlined
def record_at(place):  # type: ignore[no-untyped-def]
    """Return the record of a row that is in the disk tier."""
    return -place - 1


@_inlined
def device_slot_at(place):  # type: ignore[no-untyped-def]
    """Return the slot of a row that is in the device tier."""
    return -place - 1 - _DEVICE
