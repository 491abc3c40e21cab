"""What reads one format: a file becomes parts of so many rows, each decoded on its own or all in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dovetail.data.bad_rows import BadRow
from dovetail.data.batch import Batch
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
    """One file format."""

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        ...

    @property
    def identity(self) -> str:
        """Text that changes with everything that changes what is decoded."""
        ...

    def decode_all(self, file: DataFile) -> Iterator[DecodedPart]:
        """Yield the parts of a file in turn."""
        ...

    def decode_one(self, file: DataFile, place: int, first_row: int) -> DecodedPart:
        """Return the part at `place`, whose first row is row `first_row` of the file (from 0)."""
        ...
