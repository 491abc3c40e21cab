"""The disk tier: a log of checksummed records in segment files.

Rows are only ever appended; a row that moved up and changed leaves a dead record behind. When more than half of the log
is dead, the segment with the fewest living records is cleared: these are appended again, a part at a time, and the file
is deleted. So writes are sequential, and the files take at most about twice what the living rows take. The log is a
place to put rows while a table lives; what survives the process is a checkpoint. In a folder that is kept encrypted
(`dovetail.encryption`), records are.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.errors import DamagedFileError, storage_error
from dovetail.embedding.tiers.disk import reads as kernels
from dovetail.embedding.tiers.disk.encrypted import EncryptedSegments, decode_rows
from dovetail.embedding.tiers.disk.reads import (
    CUT_SHORT,
    DAMAGED,
    NOT_OFFERED,
    WORTH_IT,
    direct_descriptors,
    read_direct,
)
from dovetail.embedding.tiers.disk.record import RecordLayout, encode_rows
from dovetail.embedding.tiers.disk.segments import Segments
from dovetail.embedding.tiers.tier import MOST_AT_ONCE
from dovetail.encryption import key_for

LARGEST_SEGMENT_BYTES = 64 << 20
"""Each segment is an open file: at the usual limit of 1024 of them, there is room for 64 GB of cold rows."""
SMALLEST_SEGMENT_BYTES = 64 << 10
MAPPED_BYTES_A_READ = 128 << 10
"""The log is read through mappings where there are so few bytes of it for each record wanted: then finding out which
segments are in the page cache, a few microseconds a megabyte, costs less than a call for each record."""
HINT = "load the last checkpoint; check the disk"


class RecordRun(NamedTuple):
    """Some neighbours in a segment that is being cleared: the first one's number, and all as they lie in the file."""

    segment: int
    first: int
    keys: NDArray[np.int64]
    records: NDArray[np.uint32]


@dataclass(slots=True)
class DiskTier:
    """Rows in a folder of its own inside `parent`, deleted on `close`."""

    parent: Path
    layout: RecordLayout
    segment_bytes: int = LARGEST_SEGMENT_BYTES
    segments: Segments = field(init=False)
    _factors: NDArray[np.uint64] = field(init=False)
    _buffer: NDArray[np.uint32] = field(init=False)
    _clearing: int = field(init=False, default=-1)
    _num_cleared: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Make the folder."""
        try:
            self.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="rows-", dir=self.parent))
        except OSError as error:
            raise storage_error(self.parent, error, doing="written") from None
        kind = Segments if key_for(self.parent) is None else EncryptedSegments
        self.segments = kind(folder, self.segment_records, self.record_bytes)
        self._factors = self.layout.factors()
        self._buffer = np.empty((0, self.layout.words), dtype=np.uint32)

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
        return int(self.segments.num_living.sum())

    @property
    def used_bytes(self) -> int:
        """Return the bytes of all files."""
        return self.segments.used_bytes

    @property
    def memory_bytes(self) -> int:
        """Return the RAM that the tier's own lists take."""
        return self.segments.memory_bytes

    def write_from(
        self, keys: NDArray[np.int64], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Append rows, and return the number of each one's record; where the disk refuses, none counts as written."""
        records = self._room_for(len(keys))
        layout = self.layout
        encode_rows(
            records,
            keys,
            rows,
            at,
            layout.width,
            layout.value_words,
            layout.code,
            self._factors,
        )
        return self.segments.append(records)

    def read_into(
        self, keys: NDArray[np.int64], numbers: NDArray[np.int32], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> None:
        """Copy the rows of records to `rows`, every one checked."""
        segments, layout = self.segments, self.layout
        if isinstance(segments, EncryptedSegments):
            self._read_encrypted(segments, keys, numbers, rows, at)
            return
        many = len(numbers) * MAPPED_BYTES_A_READ >= self.used_bytes
        put_off = np.empty(len(numbers), dtype=np.int32)
        how = (numbers, keys, rows, at, layout.width, layout.value_words, layout.code, self._factors)
        failed, why, num_put_off = kernels.read_rows(
            segments.descriptors, segments.in_memory(look=many), self.segment_records, put_off, *how
        )
        put_off = put_off[:num_put_off]
        if failed < 0 and len(put_off) >= WORTH_IT:
            wanted = np.unique(numbers[put_off] // self.segment_records).tolist()
            with direct_descriptors({n: segments.path(n) for n in wanted}, len(segments.descriptors)) as descriptors:
                failed, why = read_direct(descriptors, self.segment_records, put_off, *how)
        if (failed < 0 and 0 < len(put_off) < WORTH_IT) or why in (NOT_OFFERED, CUT_SHORT):
            failed, why = kernels.read_waiting(segments.descriptors, self.segment_records, put_off, *how)
        if failed >= 0:
            raise self._damaged(int(numbers[failed]), int(keys[failed]), why)

    def _read_encrypted(
        self,
        segments: EncryptedSegments,
        keys: NDArray[np.int64],
        numbers: NDArray[np.int32],
        rows: NDArray[np.float32],
        at: NDArray[np.int32],
    ) -> None:
        """Do that where records are encrypted."""
        layout = self.layout
        for start in range(0, len(numbers), MOST_AT_ONCE):
            part = slice(start, start + MOST_AT_ONCE)
            records = self._room_for(len(numbers[part]))
            failed, why = segments.read(numbers[part], records), CUT_SHORT
            if failed < 0:
                how = (layout.width, layout.value_words, layout.code, self._factors)
                failed, why = decode_rows(records, keys[part], rows, at[part], *how), DAMAGED
            if failed >= 0:
                raise self._damaged(int(numbers[part][failed]), int(keys[part][failed]), why)

    def release(self, numbers: NDArray[np.int32]) -> None:
        """Declare records dead."""
        np.subtract.at(self.segments.num_living, numbers // self.segment_records, 1)

    def run_to_clear(self) -> RecordRun | None:
        """Return the next neighbours to move out of a segment, or None while enough of the log lives."""
        segments = self.segments
        segments.drop_dead()
        if self._clearing >= 0 and not segments.num_records[self._clearing]:
            self._clearing, self._num_cleared = -1, 0
        closed = int(segments.num_records.sum()) - segments.num_open_records - self._num_cleared
        if closed <= 2 * self.num_rows:
            return None
        if self._clearing < 0:
            self._clearing, self._num_cleared = segments.most_dead(), 0
        number, start = self._clearing, self._num_cleared
        records = self._room_for(min(MOST_AT_ONCE, self.segment_records - start))
        if not segments.read_neighbours(number, start, records):
            raise self._damaged(number * self.segment_records + start, None, CUT_SHORT)
        keys = np.empty(len(records), dtype=np.int64)
        kernels.keys_of(records, keys)
        return RecordRun(number, number * self.segment_records + start, keys, records)

    def move_out(self, run: RecordRun, living: NDArray[np.int32]) -> NDArray[np.int32]:
        """Append those records of a part that live again, and return their new numbers."""
        bad = kernels.pack(run.records, living, self._factors)
        if bad >= 0:
            raise self._damaged(run.first + int(bad), int(run.keys[bad]), DAMAGED)
        return self.segments.append(run.records[: len(living)])

    def cleared(self, run: RecordRun, num_moved: int) -> None:
        """Let go of a part that was moved out; nothing lives in the segment after its last one."""
        segments = self.segments
        segments.num_living[run.segment] -= num_moved
        self._num_cleared += len(run.keys)
        if self._num_cleared < self.segment_records:
            return
        self._clearing, self._num_cleared = -1, 0
        if lost := segments.num_living[run.segment]:
            raise DamagedFileError(f"{segments.path(run.segment)}: {lost} records have lost their keys", hint=HINT)

    def close(self) -> None:
        """Close and delete the files."""
        self.segments.close()
        shutil.rmtree(self.segments.folder, ignore_errors=True)

    def _room_for(self, num_records: int) -> NDArray[np.uint32]:
        """Return room for records, the same memory each time."""
        if len(self._buffer) < num_records:
            self._buffer = np.empty((num_records, self.layout.words), dtype=np.uint32)
        return self._buffer[:num_records]

    def _damaged(self, record: int, key: int | None, why: int) -> DamagedFileError:
        """Return the error for a record that cannot be believed."""
        number, position = divmod(record, self.segment_records)
        path = self.segments.path(number)
        if why == CUT_SHORT:
            what = f"record {position} cannot be read: the file is cut short or the disk fails"
        else:
            what = f"record {position} (key {key}) has a wrong checksum"
        return DamagedFileError(f"{path}: {what}", hint=HINT)
