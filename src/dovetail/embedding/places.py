"""Where a row lies, as one int32 of the index: nowhere, at a slot of the host tier, or at a record of the tier below.

    place > 0    slot place - 1
    place < 0    record -place - 1
    place = 0    nowhere: the key has no row

Nobody else knows these numbers. Every function takes one place or a whole array, and compiles into kernels. Numba's
cache looks at a kernel's own file alone: after a change here, delete the `__pycache__` of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import register_jitable

NOWHERE = 0
_inlined: Callable[[Callable[..., Any]], Callable[..., Any]] = register_jitable(inline="always")


@_inlined
def at_slot(slot):  # type: ignore[no-untyped-def]
    """Return the place of a row at a slot of the host tier."""
    return slot + 1


@_inlined
def at_record(record):  # type: ignore[no-untyped-def]
    """Return the place of a row at a record of the tier below."""
    return -record - 1


@_inlined
def is_up(place):  # type: ignore[no-untyped-def]
    """Say whether the row is in the host tier."""
    return place > 0


@_inlined
def is_below(place):  # type: ignore[no-untyped-def]
    """Say whether the row is in the tier below."""
    return place < 0


@_inlined
def slot_at(place):  # type: ignore[no-untyped-def]
    """Return the slot of a row that is in the host tier."""
    return place - 1


@_inlined
def record_at(place):  # type: ignore[no-untyped-def]
    """Return the record of a row that is in the tier below."""
    return -place - 1
