"""Arrays by their addresses, for compiled loops over any number of them."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FAR = 1 << 40
"""Longer than any array: loops stay within what there is."""


def _as_pointer(_context: Any, address: Any) -> Any:
    """Return an address as a pointer: the type, and what makes it."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


pointer: Any = intrinsic(_as_pointer)
