"""A row as it lies on disk: uint32 words with its key and a checksum of 64 bits.

    key (2 words), checksum (2), then values and optimizer state

Values are kept in float32, or, where a table is told so, in bfloat16 (two a word) or int8 (four a word, after one
float32 scale), rounded up or down by chance so that the mean stays; the chance is a hash of the row's own bits. State
is always float32. The checksum is a sum of words times odd 64-bit factors, one a place: words of one place that differ
in whatever bits give other sums, so a single flipped bit always shows, and so does any damage to one word; of damage to
several words about one in 2**32 would pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.errors import TableError
from dovetail.embedding.kernels.raw_memory import AHEAD, copy_bytes, hint_row
from dovetail.errors import did_you_mean
from dovetail.splitmix import GOLDEN, mix

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

    def factors(self) -> NDArray[np.uint64]:
        """Return what the checksum multiplies each word by: odd numbers, and zero for the checksum's own words."""
        factors = np.zeros(self.words, dtype=np.uint64)
        fill_factors(factors)
        return factors


@njit(cache=True, nogil=True)
def fill_factors(factors):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the factors of the checksum."""
    for i in range(len(factors)):
        factors[i] = mix(np.uint64(i + 1) * GOLDEN) | np.uint64(1)
    factors[2], factors[3] = np.uint64(0), np.uint64(0)


@njit(cache=True, nogil=True, error_model="numpy")
def checksum_of(record, factors):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return 64 bits that change with any bit of the record outside the checksum's own words."""
    total = np.uint64(0)
    for i in range(len(factors)):
        total += np.uint64(record[i]) * factors[i]
    return mix(total + GOLDEN)


@njit(cache=True, nogil=True, error_model="numpy")
def is_whole(record, factors):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Say whether a record has its checksum."""
    return np.uint64(record[2]) | (np.uint64(record[3]) << _32) == checksum_of(record, factors)


@njit(cache=True, nogil=True, error_model="numpy")
def encode_rows(records, keys, rows, slots, width, value_words, code, factors):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the records of the rows at `slots`."""
    all_bits = rows.view(np.uint32)
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            hint_row(rows, slots[i + AHEAD], rows.shape[1])
        record, bits = records[i], all_bits[slots[i]]
        key = np.uint64(keys[i])
        record[0], record[1] = np.uint32(key & _LOW_32), np.uint32(key >> _32)
        record[2], record[3] = np.uint32(0), np.uint32(0)
        if code == _FLOAT32:
            copy_bytes(record[HEADER_WORDS:].ctypes.data, bits.ctypes.data, 4 * len(bits))
        else:
            for j in range(value_words):
                record[HEADER_WORDS + j] = np.uint32(0)
            if code == _BFLOAT16:
                _encode_bfloat16(record, key, rows[slots[i]], bits, width)
            else:
                _encode_int8(record, key, rows[slots[i]], bits, width)
            for j in range(width, len(bits)):
                record[HEADER_WORDS + value_words + j - width] = bits[j]
        total = checksum_of(record, factors)
        record[2], record[3] = np.uint32(total & _LOW_32), np.uint32(total >> _32)


@njit(cache=True, nogil=True)
def _encode_bfloat16(record, key, row, bits, width):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the upper halves of values, rounded up with the chance that the lower half says."""
    for j in range(width):
        chance = np.uint32(mix((key + np.uint64(j + 1) * GOLDEN) ^ np.uint64(bits[j])) >> _32) & _LOW_16
        word = np.uint32(bits[j])
        low = word & _LOW_16
        if np.isfinite(row[j]) and low + chance > _LOW_16:
            word += np.uint32(0x10000)
        record[HEADER_WORDS + j // 2] |= (word >> np.uint32(16)) << np.uint32(16 * (j % 2))


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


@njit(cache=True, nogil=True, error_model="numpy")
def decode_row(record, key, row, width, value_words, code, factors):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write a row from its record; return False, and write nothing, where the key or the checksum is wrong."""
    found = np.uint64(record[0]) | (np.uint64(record[1]) << _32)
    if found != np.uint64(key) or not is_whole(record, factors):
        return False
    if code == _FLOAT32:
        copy_bytes(row.ctypes.data, record[HEADER_WORDS:].ctypes.data, 4 * len(row))
        return True
    bits = row.view(np.uint32)
    if code == _BFLOAT16:
        for j in range(width):
            bits[j] = ((record[HEADER_WORDS + j // 2] >> np.uint32(16 * (j % 2))) & _LOW_16) << np.uint32(16)
    else:
        scale = record[HEADER_WORDS : HEADER_WORDS + 1].view(np.float32)[0]
        for j in range(width):
            byte = np.int64((record[HEADER_WORDS + 1 + j // 4] >> np.uint32(8 * (j % 4))) & _LOW_8)
            row[j] = np.float32(byte - 256 if byte > 127 else byte) * scale
    for j in range(width, len(row)):
        bits[j] = record[HEADER_WORDS + value_words + j - width]
    return True
