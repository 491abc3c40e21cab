"""The public click-log format: a label, 13 integers and 26 hexadecimal categories a line, between tabs.

An empty integer is 0 and an empty category has an id of its own. Integers become log(1 + x), those below zero 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.files.decoder import ROWS_PER_PART, DecodedPart, bad_rows_of
from dovetail.data.files.opening import DataFile, line_blocks, opened
from dovetail.data.files.values import key_of_bytes, slot_salt
from dovetail.data.schema import CRITEO_SCHEMA, Schema

NUM_INTEGERS = CRITEO_SCHEMA.num_dense
NUM_CATEGORIES = CRITEO_SCHEMA.num_slots
_REASONS = {
    1: "not 40 columns",
    2: "the label is not 0 or 1",
    3: "an integer is not one",
    4: "a category is not hexadecimal",
}
_TAB, _NEWLINE, _RETURN, _MINUS = 9, 10, 13, 45
_MOST_DIGITS = 15  # more do not fit a float exactly
_MOST_HEX_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CriteoDecoder:
    """Reads the public click-log format, packed or not."""

    rows_per_part: int = ROWS_PER_PART

    @property
    def schema(self) -> Schema:
        """13 numbers and 26 slots."""
        return CRITEO_SCHEMA

    @property
    def identity(self) -> str:
        """The format and the size of its parts."""
        return f"criteo/1/{self.rows_per_part}"

    def decode(self, file: DataFile, place: int | None = None, first_row: int = 0) -> Iterator[DecodedPart]:
        """Yield the parts of a file, from the one at `place` on."""
        with opened(file) as stream:
            blocks = line_blocks(stream, where=str(file), place=place or 0, lines_per_block=self.rows_per_part)
            for block_place, text, num_lines in blocks:
                yield _decode(file, block_place, text, num_lines, first_row)
                first_row += num_lines


def _decode(file: DataFile, place: int, text: bytes, num_lines: int, first_row: int) -> DecodedPart:
    """Return the rows of a block of text."""
    salts = np.array([slot_salt(slot.name) for slot in CRITEO_SCHEMA.slots], dtype=np.uint64)
    labels, dense, ids, problems = parse_lines(np.frombuffer(text, dtype=np.uint8), num_lines, salts)
    good = np.flatnonzero(problems == 0)
    if good.size < num_lines:
        labels, dense, ids = labels[good], dense[good], ids[good]
    return DecodedPart(
        place=place,
        num_rows=num_lines,
        batch=Batch(
            sample_ids=torch.from_numpy(good),
            dense=torch.from_numpy(dense),
            ids=torch.from_numpy(ids.reshape(-1)),
            offsets=torch.arange(good.size * NUM_CATEGORIES + 1),
            labels=torch.from_numpy(labels),
        ),
        bad_rows=bad_rows_of(
            file, first_row, {line: _REASONS[int(problems[line])] for line in np.flatnonzero(problems).tolist()}
        ),
    )


@njit(cache=True, nogil=True)
def _digit(byte: int) -> int:  # pragma: no cover
    """Return the value of a hexadecimal digit, or -1."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    return byte - 55 if 65 <= byte <= 70 else -1


@njit(cache=True, nogil=True)
def _integer(text: NDArray[np.uint8], begin: int, end: int) -> tuple[bool, float]:  # pragma: no cover
    """Return whether a field is an integer or empty, and its value."""
    if begin == end:
        return True, 0.0
    negative = text[begin] == _MINUS
    first = begin + 1 if negative else begin
    if first == end or end - first > _MOST_DIGITS:
        return False, 0.0
    value = 0.0
    for position in range(first, end):
        digit = int(text[position]) - 48
        if not 0 <= digit <= 9:
            return False, 0.0
        value = value * 10.0 + digit
    return True, -value if negative else value


@njit(cache=True, nogil=True)
def _category_fits(text: NDArray[np.uint8], begin: int, end: int) -> bool:  # pragma: no cover
    """Say whether a field is hexadecimal or empty."""
    if end - begin > _MOST_HEX_DIGITS:
        return False
    for position in range(begin, end):  # noqa: SIM110
        if _digit(int(text[position])) < 0:
            return False
    return True


@njit(cache=True, nogil=True)
def _parse_field(
    text: NDArray[np.uint8],
    begin: int,
    end: int,
    column: int,
    dense: NDArray[np.float32],
    ids: NDArray[np.int64],
    salts: NDArray[np.uint64],
) -> int:  # pragma: no cover
    """Put a number or a category where it belongs and return 0, or the number of what is wrong with it."""
    if column <= NUM_INTEGERS:
        fits, value = _integer(text, begin, end)
        dense[column - 1] = np.log1p(max(value, 0.0))
        return 0 if fits else 3
    slot = column - 1 - NUM_INTEGERS
    if slot >= NUM_CATEGORIES:
        return 1
    ids[slot] = key_of_bytes(text, begin, end, salts[slot])
    return 0 if _category_fits(text, begin, end) else 4


@njit(cache=True, nogil=True)
def parse_lines(
    text: NDArray[np.uint8], num_lines: int, salts: NDArray[np.uint64]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.uint8]]:  # pragma: no cover
    """Return labels [n], numbers [n, 13], ids [n, 26], and for each line 0 or the number of what is wrong with it."""
    labels = np.zeros(num_lines, dtype=np.float32)
    dense = np.zeros((num_lines, NUM_INTEGERS), dtype=np.float32)
    ids = np.zeros((num_lines, NUM_CATEGORIES), dtype=np.int64)
    problems = np.zeros(num_lines, dtype=np.uint8)
    begin = 0
    for line in range(num_lines):
        end = begin
        while text[end] != _NEWLINE:
            end += 1
        stop = end - 1 if end > begin and text[end - 1] == _RETURN else end
        column, field = 0, begin
        for position in range(begin, stop + 1):
            if position < stop and text[position] != _TAB:
                continue
            if column == 0:
                fits = position - field == 1 and 48 <= text[field] <= 49
                labels[line] = 1.0 if fits and text[field] == 49 else 0.0
                problem = 0 if fits else 2
            else:
                problem = _parse_field(text, field, position, column, dense[line], ids[line], salts)
            if problem and not problems[line]:
                problems[line] = problem
            column += 1
            field = position + 1
        if column != 1 + NUM_INTEGERS + NUM_CATEGORIES:
            problems[line] = 1
        begin = end + 1
    return labels, dense, ids, problems
