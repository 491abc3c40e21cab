"""Reading many records that are not in the page cache: straight from the disk, hundreds at once.

Linux's own asynchronous reads (`io_submit`) past the page cache take a third of the processor time of read-ahead and
leave the page cache to others. Where a system or file system does not offer them, nothing is read and calls are used.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from dovetail.embedding.record import decode_row

WORTH_IT = 32
"""Fewer records are read by calls."""
AT_ONCE = 256
MOST_REFUSALS = 1000
UNIT_BYTES = 4096
"""Reads past the page cache begin and end at multiples of this."""
CUT_SHORT, DAMAGED, NOT_OFFERED = 1, 2, 3
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}.get(platform.machine(), (-1, -1, -1, -1))
_SETUP, _DESTROY, _EVENTS, _SUBMIT = _NUMBERS
_syscall: Any = types.ExternalFunction("syscall", types.int64(*(types.int64,) * 6))


@contextmanager
def direct_descriptors(paths: dict[int, Path], size: int) -> Iterator[NDArray[np.int32]]:
    """Open files for reads past the page cache, by number; -1 where that is refused."""
    descriptors = np.full(size, -1, dtype=np.int32)
    try:
        for number, path in paths.items():
            try:
                descriptors[number] = os.open(path, os.O_RDONLY | os.O_DIRECT)
            except OSError:
                continue
        yield descriptors
    finally:
        for descriptor in descriptors[descriptors >= 0].tolist():
            os.close(descriptor)


@njit(cache=True, nogil=True, error_model="numpy")
def _ask(context, descriptors, segment_records, record_bytes, records, memory_at, span, requests, pointers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Have records read, the k-th into the k-th span of memory; return how many the system takes on."""
    for k in range(len(records)):
        number = records[k] // segment_records
        offset = (records[k] - number * segment_records) * record_bytes
        begin = offset // UNIT_BYTES * UNIT_BYTES
        requests[k, 0] = k
        requests[k, 2] = np.int64(descriptors[number]) << 32  # in the lower half: 0, to read
        requests[k, 3] = memory_at + k * span
        requests[k, 4] = (offset + record_bytes - begin + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES
        requests[k, 5] = begin
        pointers[k] = requests.ctypes.data + 64 * k
    asked = 0
    while asked < len(records):
        taken = _syscall(_SUBMIT, context, len(records) - asked, pointers[asked:].ctypes.data, 0, 0)
        if taken <= 0:
            break
        asked += taken
    return asked


@njit(cache=True, nogil=True, error_model="numpy")
def _wait(context, asked, events, got_bytes):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Wait for all reads under way, and write what each brought; return False where the system refuses to tell."""
    done, refusals = 0, 0
    while done < asked:
        got = _syscall(_EVENTS, context, 1, asked - done, events.ctypes.data, 0)
        if got < 0:  # a signal came in between, or worse
            refusals += 1
            if refusals > MOST_REFUSALS:
                return False
            continue
        for event in range(got):
            got_bytes[events[event, 0]] = events[event, 2]
        done += got
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def read_direct(  # type: ignore[no-untyped-def]  # pragma: no cover
    descriptors, segment_records, wanted, records, keys, rows, slots, width, value_words, code, factors
):
    """Write the rows of the `wanted` records; return the first that failed, or -1, and why."""
    record_bytes = 4 * len(factors)
    span = (record_bytes // UNIT_BYTES + 2) * UNIT_BYTES
    memory = np.empty(AT_ONCE * span + UNIT_BYTES, dtype=np.uint8)
    start = (UNIT_BYTES - memory.ctypes.data % UNIT_BYTES) % UNIT_BYTES
    requests, events = np.zeros((AT_ONCE, 8), dtype=np.int64), np.empty((AT_ONCE, 4), dtype=np.int64)
    pointers, got_bytes = np.empty(AT_ONCE, dtype=np.int64), np.empty(AT_ONCE, dtype=np.int64)
    context = np.zeros(1, dtype=np.int64)
    if _SETUP < 0 or _syscall(_SETUP, AT_ONCE, context.ctypes.data, 0, 0, 0) != 0:
        return wanted[0], NOT_OFFERED
    failed, why = -1, 0
    for first in range(0, len(wanted), AT_ONCE):
        part = wanted[first : first + AT_ONCE]
        memory_at = memory.ctypes.data + start
        asked = _ask(
            *(context[0], descriptors, segment_records, record_bytes, records[part], memory_at, span),
            *(requests, pointers),
        )
        if not _wait(context[0], asked, events, got_bytes) or asked < len(part):
            failed, why = part[0], NOT_OFFERED
            break
        for k in range(len(part)):
            i = part[k]
            offset = records[i] % segment_records * record_bytes % UNIT_BYTES
            words = memory[start + k * span + offset :][:record_bytes].view(np.uint32)
            if got_bytes[k] < offset + record_bytes:
                failed, why = i, NOT_OFFERED if got_bytes[k] < 0 else CUT_SHORT
            elif not decode_row(words, keys[i], rows[slots[i]], width, value_words, code, factors):
                failed, why = i, DAMAGED
        if failed >= 0:
            break
    _syscall(_DESTROY, context[0], 0, 0, 0, 0)
    return (failed, why) if len(memory) else (-1, 0)  # a use after the last read: the memory lives until then
