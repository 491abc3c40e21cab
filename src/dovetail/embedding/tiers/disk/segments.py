"""The files of the log: which are open, how many records each has, and how many of these live."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.errors import storage_error
from dovetail.embedding.tiers.disk.bus_errors import guard, is_guarded, unguard
from dovetail.embedding.tiers.disk.reads import find_in_memory, leave_out_short

LOOK_EVERY_S = 0.02
"""How long to believe that a segment is in the page cache; the system rarely takes pages back sooner."""
_FIRST_SIZE = 16
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


class Segments:
    """Files of `segment_records` records each, as arrays by segment number that kernels read."""

    def __init__(self, folder: Path, segment_records: int, record_bytes: int) -> None:
        self.folder = folder
        self.segment_records, self.record_bytes = segment_records, record_bytes
        self.descriptors = np.full(_FIRST_SIZE, -1, dtype=np.int32)
        self.num_records = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self.num_living = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self._lengths = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self._addresses = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self._in_memory = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self._last = self._spare = -1
        self._looked_s = 0.0

    @property
    def used_bytes(self) -> int:
        """Return the bytes of all files, what is about to be written over included."""
        return int(self._lengths.sum()) * self.record_bytes

    @property
    def memory_bytes(self) -> int:
        """Return the RAM of the lists."""
        return self.descriptors.nbytes + 5 * self.num_records.nbytes

    @property
    def num_open_records(self) -> int:
        """Return how many records the segment has that takes the next one."""
        return int(self.num_records[self._last]) if self._last >= 0 else 0

    def path(self, number: int) -> Path:
        """Return where a segment lies."""
        return self.folder / f"{number:06d}.segment"

    def append(self, records: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Append records, and return their numbers; where the disk refuses, nothing counts as written."""
        numbers = np.empty(len(records), dtype=np.int32)
        parts: list[tuple[int, int]] = []
        done = 0
        while done < len(records):
            number = self._with_room()
            start = int(self.num_records[number])
            part = records[done : done + self.segment_records - start]
            self._write_at(number, start, part)
            first = number * self.segment_records + start
            numbers[done : done + len(part)] = np.arange(first, first + len(part))
            self.num_records[number] += len(part)
            self._lengths[number] = max(self._lengths[number], self.num_records[number])
            parts.append((number, len(part)))
            done += len(part)
        for number, size in parts:
            self.num_living[number] += size
        return numbers

    def read_neighbours(self, number: int, start: int, records: NDArray[np.uint32]) -> bool:
        """Read records from the `start`-th on; False where the file ends before they do."""
        data = records.data.cast("B")
        offset = start * self.record_bytes
        while data:
            try:
                got = os.preadv(int(self.descriptors[number]), [data], offset)
            except OSError:
                return False
            if not got:
                return False
            data, offset = data[got:], offset + got
        return True

    def in_memory(self, *, look: bool) -> NDArray[np.int64]:
        """Return the addresses of segments that can be read there, 0 for the others; all are 0 without a look."""
        if not look or (self._addresses.any() and not is_guarded()):
            self._looked_s = 0.0
            self._in_memory[:] = 0
            return self._in_memory
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_EVERY_S:
            for number in np.flatnonzero((self.descriptors >= 0) & (self._addresses == 0)).tolist():
                self._map(number)
            find_in_memory(self.descriptors, self._addresses, self.num_records, self.record_bytes, self._in_memory)
            self._looked_s = now_s
        leave_out_short(self.descriptors, self.num_records, self.record_bytes, self._in_memory)
        return self._in_memory

    def most_dead(self) -> int:
        """Return the full segment with the fewest living records."""
        living = np.where(self.num_records > 0, self.num_living, np.iinfo(np.int64).max)
        living[self._last] = np.iinfo(np.int64).max
        return int(living.argmin())

    def drop_dead(self) -> None:
        """Delete full segments in which nothing lives, but for one to be written over: cheaper than a new file."""
        for number in np.flatnonzero((self.descriptors >= 0) & (self.num_living == 0)).tolist():
            if number in (self._last, self._spare):
                continue
            if self._spare < 0:
                self._spare = number
                self.num_records[number] = 0
            else:
                self._close(number)
                self.path(number).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        for number in np.flatnonzero(self.descriptors >= 0).tolist():
            self._close(number)
        self._last = self._spare = -1

    def _close(self, number: int) -> None:
        if self._addresses[number]:
            unguard(int(self._addresses[number]))
            _libc.munmap(int(self._addresses[number]), self.segment_records * self.record_bytes)
        os.close(int(self.descriptors[number]))
        self.descriptors[number] = -1
        self.num_records[number] = self.num_living[number] = self._lengths[number] = 0
        self._addresses[number] = self._in_memory[number] = 0

    def _map(self, number: int) -> None:
        """Map a segment for reading, up to where it will end; without a mapping its records are read by calls."""
        size_bytes = self.segment_records * self.record_bytes
        address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, int(self.descriptors[number]), 0)
        if address in (None, _MAP_FAILED):
            return
        if guard(address, size_bytes):
            self._addresses[number] = address
        else:
            _libc.munmap(address, size_bytes)

    def _with_room(self) -> int:
        """Return the segment that takes the next record."""
        if self._last >= 0 and self.num_records[self._last] < self.segment_records:
            return self._last
        if self._spare >= 0:
            self._last, self._spare = self._spare, -1
            return self._last
        free = np.flatnonzero(self.descriptors < 0)
        number = int(free[0]) if len(free) else len(self.descriptors)
        path = self.path(number)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise storage_error(path, error, doing="written") from None
        if number == len(self.descriptors):
            self._lengthen()
        self.descriptors[number] = descriptor
        self._last = number
        return number

    def _lengthen(self) -> None:
        """Make room for as many segments again."""
        size = len(self.descriptors)
        self.descriptors = np.concatenate([self.descriptors, np.full(size, -1, dtype=np.int32)])
        for name in ("num_records", "num_living", "_lengths", "_addresses", "_in_memory"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(size, dtype=np.int64)]))

    def _write_at(self, number: int, start: int, records: NDArray[np.uint32]) -> None:
        data = records.data.cast("B")
        offset = start * self.record_bytes
        try:
            while data:
                written = os.pwrite(int(self.descriptors[number]), data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise storage_error(self.path(number), error, doing="written") from None
