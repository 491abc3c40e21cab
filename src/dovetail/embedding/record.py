"""A row as it lies on disk: uint32 words with its key and a checksum of 64 bits.

    key (2 words), checksum (2), then values and optimizer state

Values are kept in float32, or, where a table is told so, in bfloat16 (two a word) or int8 (four a word, after one
float32 scale), rounded up or down by chance so that the mean stays; the chance is a hash of the row's own bits. State
is always float32. The checksum takes in every word by a step that loses nothing, so a single flipped bit always shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.errors import TableError
from dovetail.embedding.hashing import GOLDEN, mix
from dovetail.errors import did_you_mean

HEADER_WORDS = 4
Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
_8, _16, _32 = np.uint64(8), np.uint64(16), np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_FLOAT32, _BFLOAT16, _INT8 = 0, 1, 2
_LOW_16, _LOW_8 = np.uint32(0xFFFF), np.uint32(0xFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """How long a record is, and how its values are kept."""

    width: int
    state_width: int
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        """Refuse precisions that are not known."""
        if self.precision not in PRECISIONS:
            raise TableError(f"there is no precision `{self.precision}`", hint=did_you_mean(self.precision, PRECISIONS))

    @property
    def code(self) -> int:
        """Return the precision as kernels take it."""
        return PRECISIONS.index(self.precision)

    @property
    def value_words(self) -> int:
        """Return the words that the values take."""
        return (self.width, -(-self.width // 2), 1 + -(-self.width // 4))[self.code]

    @property
    def words(self) -> int:
        """Return the words of a record."""
        return HEADER_WORDS + self.value_words + self.state_width

    def encode(self, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the records of rows: uint32 [len(keys), words]."""
        records = np.zeros((len(keys), self.words), dtype=np.uint32)
        encode_all(records, keys, np.ascontiguousarray(rows), self.width, self.value_words, self.code)
        return records

    def decode(self, keys: NDArray[np.int64], records: NDArray[np.uint32], rows: NDArray[np.float32]) -> int:
        """Write rows from records; return the position of the first damaged one, or -1."""
        return int(decode_all(records, keys, rows, self.width, self.value_words, self.code))


@njit(cache=True, nogil=True)
def checksum_of(record):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return 64 bits that change with any bit of the record outside the checksum's own words."""
    total = GOLDEN
    for i in range(len(record)):
        if i < 2 or i > 3:
            total = mix(total ^ np.uint64(record[i]))
    return total


@njit(cache=True, nogil=True)
def encode_all(records, keys, rows, width, value_words, code):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write records."""
    bits = rows.view(np.uint32)
    for i in range(len(keys)):
        record = records[i]
        key = np.uint64(keys[i])
        record[0], record[1] = np.uint32(key & _LOW_32), np.uint32(key >> _32)
        if code == _FLOAT32:
            for j in range(width):
                record[HEADER_WORDS + j] = bits[i, j]
        elif code == _BFLOAT16:
            for j in range(width):
                chance = np.uint32(mix((key + np.uint64(j + 1) * GOLDEN) ^ np.uint64(bits[i, j])) >> _32) & _LOW_16
                word = np.uint32(bits[i, j])
                low = word & _LOW_16
                if np.isfinite(rows[i, j]) and low + chance > _LOW_16:
                    word += np.uint32(0x10000)
                record[HEADER_WORDS + j // 2] |= (word >> np.uint32(16)) << np.uint32(16 * (j % 2))
        else:
            _encode_int8(record, key, rows[i], bits[i], width)
        for j in range(width, rows.shape[1]):
            record[HEADER_WORDS + value_words + j - width] = bits[i, j]
        total = checksum_of(record)
        record[2], record[3] = np.uint32(total & _LOW_32), np.uint32(total >> _32)


@njit(cache=True, nogil=True)
def _encode_int8(record, key, row, bits, width):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write values as whole multiples of a scale, the largest being 127 of it."""
    largest = np.float32(0)
    for j in range(width):
        largest = max(largest, abs(row[j]))
    scales = np.empty(1, dtype=np.float32)
    scales[0] = largest / np.float32(127)
    record[HEADER_WORDS] = scales.view(np.uint32)[0]
    for j in range(width):
        chance = np.float64(mix((key + np.uint64(j + 1) * GOLDEN) ^ np.uint64(bits[j])) >> _32) * 2.0**-32
        steps = np.float64(row[j]) / np.float64(scales[0]) if scales[0] > 0 else 0.0
        whole = min(127, max(-127, int(np.floor(steps + chance))))
        record[HEADER_WORDS + 1 + j // 4] |= (np.uint32(whole & 255) & _LOW_8) << np.uint32(8 * (j % 4))


@njit(cache=True, nogil=True)
def decode_all(records, keys, rows, width, value_words, code):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write rows from records; stop at the first whose key or checksum is wrong and return its position, else -1."""
    bits = rows.view(np.uint32)
    for i in range(len(keys)):
        record = records[i]
        total = np.uint64(record[2]) | (np.uint64(record[3]) << _32)
        key = np.uint64(record[0]) | (np.uint64(record[1]) << _32)
        if key != np.uint64(keys[i]) or total != checksum_of(record):
            return i
        if code == _FLOAT32:
            for j in range(width):
                bits[i, j] = record[HEADER_WORDS + j]
        elif code == _BFLOAT16:
            for j in range(width):
                bits[i, j] = ((record[HEADER_WORDS + j // 2] >> np.uint32(16 * (j % 2))) & _LOW_16) << np.uint32(16)
        else:
            scale = record[HEADER_WORDS : HEADER_WORDS + 1].view(np.float32)[0]
            for j in range(width):
                byte = np.int64((record[HEADER_WORDS + 1 + j // 4] >> np.uint32(8 * (j % 4))) & _LOW_8)
                rows[i, j] = np.float32(byte - 256 if byte > 127 else byte) * scale
        for j in range(width, rows.shape[1]):
            bits[i, j] = record[HEADER_WORDS + value_words + j - width]
    return -1
