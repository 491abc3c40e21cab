"""The disk tier: a log of checksummed records in segment files.

Rows are only ever appended; a row that moved up and changed leaves a dead record behind. A segment that is mostly dead
is emptied: its living records are appended again and the file is deleted. So writes are sequential, and the files take
at most about twice what the living rows take. The log is a place to put rows while a table lives; what survives the
process is a checkpoint.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from dovetail.embedding.errors import DamagedFileError, storage_error
from dovetail.embedding.record import RecordLayout

LARGEST_SEGMENT_BYTES = 64 << 20
"""Each segment is an open file: at the usual limit of 1024 of them, there is room for 64 GB of cold rows."""
SMALLEST_SEGMENT_BYTES = 64 << 10
MOST_MOVED = 4096
"""Records moved within the log in one go."""
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uintp, types.int64))


Moved = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]


@dataclass(slots=True)
class Segment:
    """One file of the log: how many records it has and which of them live."""

    path: Path
    descriptor: int
    lives: NDArray[np.bool_]
    num_records: int = 0
    num_lives: int = 0


@dataclass(slots=True)
class DiskTier:
    """Rows in a folder of its own inside `parent`, deleted on `close`."""

    parent: Path
    layout: RecordLayout
    segment_bytes: int = LARGEST_SEGMENT_BYTES
    folder: Path = field(init=False)
    segments: dict[int, Segment] = field(init=False, default_factory=dict)
    _spare_numbers: list[int] = field(init=False, default_factory=list)
    _last: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        """Make the folder."""
        try:
            self.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix="rows-", dir=self.parent))
        except OSError as error:
            raise storage_error(self.parent, error, doing="written") from None

    @property
    def record_bytes(self) -> int:
        """Return the bytes of a record."""
        return self.layout.words * 4

    @property
    def segment_records(self) -> int:
        """Return how many records a full segment has."""
        return max(2, self.segment_bytes // self.record_bytes)

    @property
    def num_rows(self) -> int:
        """Return how many records live."""
        return sum(segment.num_lives for segment in self.segments.values())

    @property
    def used_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(segment.num_records for segment in self.segments.values()) * self.record_bytes

    @property
    def memory_bytes(self) -> int:
        """Return the RAM that the tier's own lists take."""
        return len(self.segments) * self.segment_records

    def write(self, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> NDArray[np.int32]:
        """Append rows, and return the number of each one's record."""
        return self.append(self.layout.encode(keys, rows))

    def append(self, records: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Append records as they are; where the disk refuses, nothing counts as written."""
        numbers = np.empty(len(records), dtype=np.int32)
        done = 0
        while done < len(records):
            segment = self._open_segment()
            room = self.segment_records - segment.num_records
            part = records[done : done + room]
            self._write_at(segment, part)
            first = self._last * self.segment_records + segment.num_records
            numbers[done : done + len(part)] = np.arange(first, first + len(part))
            segment.num_records += len(part)
            done += len(part)
        for number, within in self._by_segment(numbers):
            segment = self.segments[number]
            segment.lives[numbers[within] % self.segment_records] = True
            segment.num_lives += len(within)
        return numbers

    def read(self, keys: NDArray[np.int64], places: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the rows of records, every one checked."""
        rows = np.empty((len(keys), self.layout.width + self.layout.state_width), dtype=np.float32)
        for number, within in self._by_segment(places):
            segment = self.segments[number]
            positions = (places[within] % self.segment_records).astype(np.int64)
            records = np.empty((len(within), self.layout.words), dtype=np.uint32)
            got = read_records(segment.descriptor, positions, records, self.record_bytes)
            if got < len(within):
                raise DamagedFileError(
                    f"{segment.path}: record {positions[got]} cannot be read: the file is cut short or the disk fails",
                    hint="load the last checkpoint; check the disk",
                )
            part = np.empty((len(within), rows.shape[1]), dtype=np.float32)
            bad = self.layout.decode(keys[within], records, part)
            if bad >= 0:
                raise DamagedFileError(
                    f"{segment.path}: record {positions[bad]} (key {keys[within][bad]}) has a wrong checksum",
                    hint="load the last checkpoint; check the disk",
                )
            rows[within] = part
        return rows

    def release(self, places: NDArray[np.int32]) -> None:
        """Declare records dead, and delete files in which nothing lives."""
        for number, within in self._by_segment(places):
            segment = self.segments[number]
            segment.lives[places[within] % self.segment_records] = False
            segment.num_lives -= len(within)
            if segment.num_lives == 0 and number != self._last:
                self._drop(number)

    def most_dead(self) -> int | None:
        """Return the full segment with the fewest living records, where less than half of them live."""
        full = [number for number in self.segments if number != self._last]
        if not full:
            return None
        number = min(full, key=lambda n: self.segments[n].num_lives)
        return number if self.segments[number].num_lives * 2 < self.segment_records else None

    def move_out(self, number: int) -> Moved:
        """Append some of the living records of a segment again; return their keys, old numbers and new numbers."""
        segment = self.segments[number]
        positions = np.flatnonzero(segment.lives)[:MOST_MOVED]
        records = np.empty((len(positions), self.layout.words), dtype=np.uint32)
        if read_records(segment.descriptor, positions, records, self.record_bytes) < len(positions):
            raise DamagedFileError(f"{segment.path}: is cut short", hint="load the last checkpoint; check the disk")
        keys = np.ascontiguousarray(records[:, :2]).view(np.int64).ravel()
        old = (number * self.segment_records + positions).astype(np.int32)
        return keys, old, self.append(records)

    def retire(self, number: int, old: NDArray[np.int32]) -> None:
        """Let go of records that were moved out, and of the segment once nothing in it lives."""
        self.release(old)
        if number in self.segments and self.segments[number].num_lives == 0:
            self._drop(number)

    def close(self) -> None:
        """Close and delete the files."""
        for segment in self.segments.values():
            os.close(segment.descriptor)
        self.segments.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _by_segment(self, places: NDArray[np.int32]) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the positions in `places` of each segment, ordered by where they lie in it."""
        if not len(places):
            return []
        order = np.argsort(places, kind="stable")
        numbers = places[order] // self.segment_records
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        return [(int(places[part[0]] // self.segment_records), part) for part in np.split(order, cuts)]

    def _open_segment(self) -> Segment:
        """Return the segment that takes the next record."""
        if self._last >= 0 and self.segments[self._last].num_records < self.segment_records:
            return self.segments[self._last]
        number = self._spare_numbers.pop() if self._spare_numbers else len(self.segments)
        path = self.folder / f"{number:06d}.segment"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            self._spare_numbers.append(number)
            raise storage_error(path, error, doing="written") from None
        self._last = number
        self.segments[number] = Segment(path, descriptor, np.zeros(self.segment_records, dtype=np.bool_))
        return self.segments[number]

    def _write_at(self, segment: Segment, records: NDArray[np.uint32]) -> None:
        """Write records behind the last one of a segment."""
        data = np.ascontiguousarray(records).data.cast("B")
        offset = segment.num_records * self.record_bytes
        try:
            while data:
                written = os.pwrite(segment.descriptor, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise storage_error(segment.path, error, doing="written") from None

    def _drop(self, number: int) -> None:
        """Delete a segment's file."""
        segment = self.segments.pop(number)
        os.close(segment.descriptor)
        segment.path.unlink(missing_ok=True)
        self._spare_numbers.append(number)


@njit(cache=True, nogil=True)
def read_records(descriptor, positions, records, record_bytes):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Read records, neighbours in one go; return how many were read before the first that could not be."""
    start = 0
    while start < len(positions):
        end = start + 1
        while end < len(positions) and positions[end] == positions[end - 1] + 1:
            end += 1
        wanted = (end - start) * record_bytes
        done = 0
        while done < wanted:
            got = _pread(
                descriptor, records[start:].ctypes.data + done, wanted - done, positions[start] * record_bytes + done
            )
            if got <= 0:
                return start + done // record_bytes
            done += got
        start = end
    return len(positions)
