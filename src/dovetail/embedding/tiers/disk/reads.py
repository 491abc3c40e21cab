"""Kernels that read records of the log, each checked before it is believed.

Records in segments that the system has in its page cache as a whole are read through a mapping, which takes a tenth of
the time of a call. All others are read by calls; where a call would wait for the disk, the record is put off, and those
are read together, so that the disk works on many at once.

Many that are put off are read straight from the disk, hundreds at once: Linux's own asynchronous reads (`io_submit`)
past the page cache take a third of the processor time of read-ahead and leave the page cache to others. Where a system
or file system does not offer them, nothing is read so and calls are used.
"""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numpy.typing import NDArray

from dovetail.embedding.kernels.raw_memory import AHEAD, LINE_BYTES, fetch_soon, words_at
from dovetail.embedding.tiers.disk.record import decode_row, is_whole

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
            context[0],
            descriptors,
            segment_records,
            record_bytes,
            records[part],
            memory_at,
            span,
            requests,
            pointers,
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


_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uintp, types.int64))
_lseek: Any = types.ExternalFunction("lseek", types.int64(types.int32, types.int64, types.int32))
_preadv2: Any = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.uintp, types.int32, types.int64, types.int32)
)
_advise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
_syscall_of_four: Any = types.ExternalFunction(
    "syscall", types.int64(types.int64, types.int64, types.uintp, types.uintp, types.int64)
)
_CACHESTAT = 451
"""The number of Linux's `cachestat` (since 6.5) everywhere; older systems refuse it, and calls are used."""
_FROM_THE_END, _WILL_NEED, _NO_WAIT = 2, 3, 8
_PAGE_BYTES = mmap.PAGESIZE


@njit(cache=True, nogil=True)
def find_in_memory(descriptors, addresses, num_records, record_bytes, usable):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the address of each mapped segment that is in the page cache as a whole, 0 for the others."""
    span = np.zeros(2, dtype=np.uint64)
    found = np.zeros(5, dtype=np.uint64)
    for number in range(len(descriptors)):
        usable[number] = 0
        size_bytes = num_records[number] * record_bytes
        if addresses[number] == 0 or size_bytes == 0:
            continue
        span[1] = size_bytes
        if _syscall_of_four(_CACHESTAT, descriptors[number], span.ctypes.data, found.ctypes.data, 0) != 0:
            return
        if np.int64(found[0]) * _PAGE_BYTES >= size_bytes:
            usable[number] = addresses[number]


@njit(cache=True, nogil=True)
def leave_out_short(descriptors, num_records, record_bytes, usable):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set the address of files that were cut short to 0: reading beyond their end would end the process."""
    for number in range(len(descriptors)):
        size_bytes = num_records[number] * record_bytes
        if usable[number] != 0 and _lseek(descriptors[number], 0, _FROM_THE_END) < size_bytes:
            usable[number] = 0


@njit(cache=True, nogil=True)
def _read_record(descriptor, offset, target, record_bytes):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Read one record by calls; False where the file ends before it does."""
    done = 0
    while done < record_bytes:
        got = _pread(descriptor, np.uintp(target + done), record_bytes - done, offset + done)
        if got <= 0:
            return False
        done += got
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def read_rows(  # type: ignore[no-untyped-def]  # pragma: no cover
    descriptors, addresses, segment_records, put_off, records, keys, rows, slots, width, value_words, code, factors
):
    """Write the rows of records to `slots` of `rows`; `put_off` gets those that the disk has to be waited for.

    Returns the first that failed, or -1, why, and how many are put off.
    """
    words = len(factors)
    record_bytes = 4 * words
    scratch = np.empty(words, dtype=np.uint32)
    target = scratch.ctypes.data
    vector = np.array([target, record_bytes], dtype=np.uintp)
    num_put_off = 0
    for i in range(len(records)):
        if i + AHEAD < len(records):
            number = records[i + AHEAD] // segment_records
            if addresses[number] != 0:
                source = addresses[number] + (records[i + AHEAD] - number * segment_records) * record_bytes
                for offset in range(0, record_bytes + LINE_BYTES - 1, LINE_BYTES):
                    fetch_soon(np.uintp(source + offset))
        number = records[i] // segment_records
        offset = (records[i] - number * segment_records) * record_bytes
        if addresses[number] != 0:
            record = carray(words_at(np.uintp(addresses[number] + offset)), words)
        elif _preadv2(descriptors[number], vector.ctypes.data, 1, offset, _NO_WAIT) != record_bytes:
            put_off[num_put_off] = i
            num_put_off += 1
            continue
        else:
            record = scratch
        if not decode_row(record, keys[i], rows[slots[i]], width, value_words, code, factors):
            return i, DAMAGED, 0
    return -1, 0, num_put_off


@njit(cache=True, nogil=True, error_model="numpy")
def read_waiting(  # type: ignore[no-untyped-def]  # pragma: no cover
    descriptors, segment_records, wanted, records, keys, rows, slots, width, value_words, code, factors
):
    """Write the rows of the `wanted` records, waiting for each; return the first that failed, or -1, and why."""
    record_bytes = 4 * len(factors)
    scratch = np.empty(len(factors), dtype=np.uint32)
    for i in wanted:
        number = records[i] // segment_records
        _advise(descriptors[number], (records[i] - number * segment_records) * record_bytes, record_bytes, _WILL_NEED)
    for i in wanted:
        number = records[i] // segment_records
        offset = (records[i] - number * segment_records) * record_bytes
        if not _read_record(descriptors[number], offset, scratch.ctypes.data, record_bytes):
            return i, CUT_SHORT
        if not decode_row(scratch, keys[i], rows[slots[i]], width, value_words, code, factors):
            return i, DAMAGED
    return -1, 0


@njit(cache=True, nogil=True, error_model="numpy")
def keys_of(records, keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the keys that records say they have."""
    for i in range(len(records)):
        keys[i] = np.int64(np.uint64(records[i, 0]) | (np.uint64(records[i, 1]) << np.uint64(32)))


@njit(cache=True, nogil=True, error_model="numpy")
def pack(records, chosen, factors):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Move the chosen records to the front; return the first that is damaged, or -1."""
    for i in range(len(chosen)):
        if not is_whole(records[chosen[i]], factors):
            return chosen[i]
        records[i] = records[chosen[i]]
    return -1
