"""Segments whose records are encrypted, for tables whose folder is kept encrypted.

Rows go to disk while a table lives and no longer, so the key is drawn for each table, and only in memory. A record is
encrypted by itself, as each is read by itself:

    nonce (3 words, how many records were written before), the record, tag (4)

Authenticated with it are its place and how often its segment was begun: a record that lay there before is refused too.
"""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.errors import DamagedFileError
from dovetail.embedding.tiers.disk.record import decode_row
from dovetail.embedding.tiers.disk.segments import Segments

NONCE_BYTES, TAG_BYTES = 12, 16
MORE_BYTES = NONCE_BYTES + TAG_BYTES
"""Of an encrypted record."""
PLACE = struct.Struct("<QQ")


class EncryptedSegments(Segments):
    """Segments that encrypt what is appended, and decrypt what is read."""

    def __init__(self, folder: Path, segment_records: int, record_bytes: int) -> None:
        """Draw a key; records have so many bytes before they are encrypted."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - loaded only where it is used

        super().__init__(folder, segment_records, record_bytes + MORE_BYTES)
        self._cipher: Any = AESGCM(AESGCM.generate_key(256))
        self._written, self._begun = itertools.count(), itertools.count()
        self._times: dict[int, int] = {}
        """The how-manieth segment was begun where one is now."""

    def read_neighbours(self, number: int, start: int, records: NDArray[np.uint32]) -> bool:
        """Read records from the `start`-th on; False where the file ends before they do."""
        found = np.empty((len(records), self.record_bytes), dtype=np.uint8)
        if not super().read_neighbours(number, start, found):  # type: ignore[arg-type]  # bytes as they lie in the file
            return False
        for place, (data, record) in enumerate(zip(found, records, strict=True)):
            self._decrypt(number, start + place, data, record)
        return True

    def read(self, numbers: NDArray[np.int32], records: NDArray[np.uint32]) -> int:
        """Read records by their numbers; return the first that the file ends before, or -1."""
        for i, of_all in enumerate(numbers.tolist()):
            number, place = divmod(of_all, self.segment_records)
            data = os.pread(int(self.descriptors[number]), self.record_bytes, place * self.record_bytes)
            if len(data) < self.record_bytes:
                return i
            self._decrypt(number, place, data, records[i])
        return -1

    def _decrypt(self, number: int, place: int, data: Any, record: NDArray[np.uint32]) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - the same

        view = memoryview(data)
        try:
            with_it = PLACE.pack(self._times[number], place)
            plain = self._cipher.decrypt(bytes(view[:NONCE_BYTES]), view[NONCE_BYTES:], with_it)
        except InvalidTag:
            raise DamagedFileError(
                f"{self.path(number)}: record {place} is damaged, or not what was written there",
                hint="load the last checkpoint; check the disk",
            ) from None
        record[:] = np.frombuffer(plain, dtype=np.uint32)

    def _with_room(self) -> int:
        before, number = self._last, super()._with_room()
        if number != before:
            self._times[number] = next(self._begun)
        return number

    def _write_at(self, number: int, start: int, records: NDArray[np.uint32]) -> None:
        found = bytearray()
        for place, record in enumerate(np.ascontiguousarray(records).view(np.uint8), start):
            nonce = next(self._written).to_bytes(NONCE_BYTES, "little")
            found += nonce
            found += self._cipher.encrypt(nonce, record.data, PLACE.pack(self._times[number], place))
        super()._write_at(number, start, np.frombuffer(found, dtype=np.uint8))


@njit(cache=True, nogil=True, error_model="numpy")
def decode_rows(records, keys, rows, slots, width, value_words, code, factors):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the rows of records to `slots` of `rows`; return the first that failed, or -1."""
    for i in range(len(records)):
        if not decode_row(records[i], keys[i], rows[slots[i]], width, value_words, code, factors):
            return i
    return -1
