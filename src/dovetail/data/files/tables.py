"""What formats with named columns have in common: a file becomes tables, and those become samples."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from dovetail.data.errors import DataError
from dovetail.data.files.columns import Columns
from dovetail.data.files.decoder import ROWS_PER_PART, DecodedPart
from dovetail.data.files.opening import DataFile
from dovetail.data.schema import Schema
from dovetail.errors import did_you_mean

LABELS = ("label", "labels", "target", "targets", "y")
"""What a sample's label is called where nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """Some consecutive rows of a file, as a table."""

    place: int
    """Where in the file they are, in the format's own terms."""
    table: pa.Table
    skipped: Mapping[int, str] = field(default_factory=dict)
    """Rows of the part that the table lacks, by their number within it, and why."""

    @property
    def num_rows(self) -> int:
        """How many rows there are, those skipped included."""
        return int(self.table.num_rows) + len(self.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDecoder(abc.ABC):
    """A format whose files are tables; a subclass says how one is read.

    A folder `day=2024-01-31` on the way to a file is a column `day` of it, unless the file has one of its own.
    """

    columns: Columns = field(default_factory=lambda: Columns(label=None))
    rows_per_part: int = ROWS_PER_PART
    format: ClassVar[str]
    version: ClassVar[int] = 2
    label_names: ClassVar[tuple[str, ...]] = LABELS

    @property
    def schema(self) -> Schema:
        """What the columns say."""
        return self.columns.schema

    @property
    def identity(self) -> str:
        """The format and the columns."""
        return f"{self.format}/{self.version}/{self.rows_per_part}/{self.columns!r}"

    @abc.abstractmethod
    def types(self, file: DataFile) -> pa.Schema:
        """Return the names and types of a file's own columns."""
        ...

    @abc.abstractmethod
    def _tables(self, file: DataFile, names: Sequence[str], place: int | None, first_row: int) -> Iterator[TablePart]:
        """Yield the file's own columns among `names` (see `_own_names`), from the part at `place` on."""
        ...

    def tables(
        self, file: DataFile, names: Sequence[str], place: int | None = None, first_row: int = 0
    ) -> Iterator[TablePart]:
        """Yield columns of a file, part by part, from the one at `place` on, whose first row is row `first_row`."""
        for part in self._tables(file, names, place, first_row):
            table = part.table
            for name in names:
                if name not in table.column_names:
                    values = pa.repeat(pa.scalar(file.partitions[name], pa.string()), table.num_rows)
                    table = table.append_column(name, values)
            yield TablePart(place=part.place, table=table, skipped=part.skipped)

    def decode(self, file: DataFile, place: int | None = None, first_row: int = 0) -> Iterator[DecodedPart]:
        """Yield the parts of a file, from the one at `place` on."""
        for part in self.tables(file, self.columns.names, place, first_row):
            with _named(file):
                decoded = self.columns.part(file, part.place, first_row, part.table, part.skipped)
            yield decoded
            first_row += part.num_rows

    def _check_kinds(self, file: DataFile, types: pa.Schema) -> None:
        """Refuse a file that lacks columns, or has some of the wrong kind, before any is read."""
        names = self._own_names(file, types.names, self.columns.names)
        table = types.empty_table().select(names)
        for name in self.columns.names:
            if name not in names:
                table = table.append_column(name, pa.nulls(0, pa.string()))
        with _named(file):
            self.columns.samples(table)

    def _own_names(self, file: DataFile, present: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return which of the columns wanted are the file's own; refuse it where one is nowhere, or there twice."""
        own = []
        for name in names:
            if list(present).count(name) > 1:
                raise DataError(f"`{file}` has two columns `{name}`", hint="rename one of them")
            if name in present:
                own.append(name)
            elif name not in file.partitions:
                known = [*present, *file.partitions]
                raise DataError(f"`{file}` has no column `{name}`", hint=did_you_mean(name, known))
        return own


@contextlib.contextmanager
def _named(file: DataFile) -> Iterator[None]:
    """Say of which file it is that its columns cannot be understood."""
    try:
        yield
    except DataError as problem:
        raise DataError(f"`{file}`: {problem}", hint=problem.hint) from None
