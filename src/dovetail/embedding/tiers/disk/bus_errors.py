"""Mapped files without the fear of SIGBUS.

A page of a mapped file that cannot be read (the file was cut short, the disk failed) ends the process with SIGBUS. Here
such a page is replaced by zeros, which no checksum agrees with: the reader finds a damaged record. Faults at any other
address go to whoever handled them before.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any

import numpy as np
from numba import carray, cfunc, types  # type: ignore[attr-defined]

from dovetail.embedding.kernels.raw_memory import words_at

MOST_RANGES = 4096
"""Mapped files of one process; a file beyond that is not mapped."""
_SIGBUS, _WITH_ADDRESS, _ON_ITS_STACK = 7, 4, 0x08000000
_ADDRESS_WORD = 4
"""Where a signal's information has the address of the fault, in words of 4 bytes."""
_READ, _ZEROS_HERE = mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
_PAGE_BYTES = mmap.PAGESIZE


class _Action(ctypes.Structure):
    """The C library's `struct sigaction`."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_libc = ctypes.CDLL(None)
_ranges = np.zeros((MOST_RANGES, 2), dtype=np.uint64)
_before = _Action()
_lock = threading.Lock()
_compiled: list[Any] = []
_mmap: Any = types.ExternalFunction(
    "mmap", types.intp(types.uintp, types.uintp, types.int32, types.int32, types.int32, types.int64)
)
_sigaction: Any = types.ExternalFunction("sigaction", types.int32(types.int32, types.uintp, types.uintp))


def _compile() -> Any:
    """Return the handler, which knows where this process keeps the ranges and the action before it."""
    ranges_at, before_at = _ranges.ctypes.data, ctypes.addressof(_before)

    def handle(_number, information, _context):  # type: ignore[no-untyped-def]  # pragma: no cover
        words = carray(words_at(np.uintp(information)), _ADDRESS_WORD + 2)
        address = np.uint64(words[_ADDRESS_WORD]) | (np.uint64(words[_ADDRESS_WORD + 1]) << np.uint64(32))
        ranges = carray(words_at(np.uintp(ranges_at)), 4 * MOST_RANGES)
        for i in range(MOST_RANGES):
            start = np.uint64(ranges[4 * i]) | (np.uint64(ranges[4 * i + 1]) << np.uint64(32))
            end = np.uint64(ranges[4 * i + 2]) | (np.uint64(ranges[4 * i + 3]) << np.uint64(32))
            if start <= address < end:
                page = np.uintp(address - address % np.uint64(_PAGE_BYTES))
                _mmap(page, _PAGE_BYTES, _READ, _ZEROS_HERE, -1, 0)
                return
        _sigaction(_SIGBUS, np.uintp(before_at), np.uintp(0))  # not ours: fault again, under the action before

    return cfunc(types.void(types.int32, types.uintp, types.uintp))(handle)


def is_guarded() -> bool:
    """Say whether the handler is in place: somebody else may have set another since."""
    current = _Action()
    _libc.sigaction(_SIGBUS, None, ctypes.byref(current))
    return bool(_compiled) and current.handler == _compiled[0].address


def guard(address: int, size_bytes: int) -> bool:
    """Have faults in a mapped file read as zeros; False where there is no room for one more."""
    with _lock:
        free = np.flatnonzero(_ranges[:, 1] == 0)
        if not len(free):
            return False
        _ranges[free[0]] = address, address + size_bytes
        if not _compiled:
            _compiled.append(_compile())
            action = _Action(handler=_compiled[0].address, flags=_WITH_ADDRESS | _ON_ITS_STACK)
            _libc.sigaction(_SIGBUS, ctypes.byref(action), ctypes.byref(_before))
        return True


def unguard(address: int) -> None:
    """Forget a file that is about to be unmapped."""
    with _lock:
        _ranges[_ranges[:, 0] == np.uint64(address)] = 0
