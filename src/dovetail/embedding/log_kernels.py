"""Kernels that read records of the log, each checked before it is believed.

Records in segments that the system has in its page cache as a whole are read through a mapping, which takes a tenth of
the time of a call. All others are read by calls; where a call would wait for the disk, the record is put off, and those
are read together, so that the disk works on many at once.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]

from dovetail.embedding.direct_reads import CUT_SHORT, DAMAGED
from dovetail.embedding.raw_memory import AHEAD, LINE_BYTES, fetch_soon, words_at
from dovetail.embedding.record import decode_row, is_whole

_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uintp, types.int64))
_lseek: Any = types.ExternalFunction("lseek", types.int64(types.int32, types.int64, types.int32))
_preadv2: Any = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.uintp, types.int32, types.int64, types.int32)
)
_advise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
_syscall: Any = types.ExternalFunction(
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
        if _syscall(_CACHESTAT, descriptors[number], span.ctypes.data, found.ctypes.data, 0) != 0:
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
