"""What reads one format: a file becomes parts of so many rows, from the first or from any other on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from dovetail.data.batch import Batch
from dovetail.data.errors import BadRow
from dovetail.data.files.opening import DataFile
from dovetail.data.schema import Schema

ROWS_PER_PART = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPart:
    """Some consecutive rows of a file."""

    place: int
    """Where in the file they are, in the decoder's own terms."""
    num_rows: int
    """How many rows there are, broken ones included."""
    batch: Batch
    """The rows that are not broken; their sample ids are row numbers within the part, from 0."""
    bad_rows: tuple[BadRow, ...]


class Decoder(Protocol):
    """One file format.

    One whose files say where their rows are also has `layout(file)`, which returns (place, rows) of every run of rows
    that is decoded at once, without decoding any.
    """

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        ...

    @property
    def identity(self) -> str:
        """Text that changes with everything that changes what is decoded."""
        ...

    def decode(self, file: DataFile, place: int | None = None, first_row: int = 0) -> Iterator[DecodedPart]:
        """Yield the parts of a file, from the one at `place` on, whose first row is row `first_row` (from 0)."""
        ...


def bad_rows_of(file: DataFile, first_row: int, reasons: Mapping[int, str]) -> tuple[BadRow, ...]:
    """Return the broken rows of a part, given why by their number within it."""
    return tuple(BadRow(file=str(file), row=first_row + row + 1, reason=reasons[row]) for row in sorted(reasons))
