"""Memory by its address: ask for it a little before it is read, read it as words, copy it."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

LINE_BYTES = 64
"""Bytes that one hint brings in."""
AHEAD = 20
"""Rows between a hint and its use: memory takes about as long as the work on so many."""


def _fetch_soon(_typing: Any, _address: Any) -> Any:
    """Bring the cache line at an address in; an address that is not mapped does no harm."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(hint, [pointer, number(0), number(3), number(1)])  # for reading, into every cache, data
        return context.get_dummy_value()

    return types.void(types.uintp), generate


def _words_at(_typing: Any, _address: Any) -> Any:
    """Return an address as a pointer to uint32 words."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return _Words(types.uintp), generate


_Words: Any = types.CPointer(types.uint32)  # type: ignore[no-untyped-call]
fetch_soon: Any = intrinsic(_fetch_soon)
words_at: Any = intrinsic(_words_at)
copy_bytes: Any = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))


@njit(cache=True, nogil=True, inline="always")
def hint_row(rows, slot, width):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Ask for the first `width` numbers of a row."""
    address = rows.ctypes.data + np.int64(slot) * rows.strides[0]
    for offset in range(0, 4 * width, LINE_BYTES):
        fetch_soon(np.uintp(address + offset))
