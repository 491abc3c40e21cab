"""Parquet files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as arrow_parquet

from dovetail.data.bad_rows import BadRow
from dovetail.data.errors import DataError
from dovetail.data.files.columns import Columns
from dovetail.data.files.decoder import ROWS_PER_PART, DecodedPart
from dovetail.data.files.opening import DataFile, opened
from dovetail.data.schema import Schema

_START_BITS = 40  # a place is the row group, and the row within it where a part starts


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetDecoder:
    """Reads Parquet, one row group at a time and only the columns that are wanted."""

    columns: Columns
    rows_per_part: int = ROWS_PER_PART

    @property
    def schema(self) -> Schema:
        """What the columns say."""
        return self.columns.schema

    @property
    def identity(self) -> str:
        """The format and the columns."""
        return f"parquet/1/{self.rows_per_part}/{self.columns!r}"

    def decode_all(self, file: DataFile) -> Iterator[DecodedPart]:
        """Yield the parts of a file in turn."""
        first_row = 0
        with self._parquet(file) as parquet:
            for group in range(parquet.metadata.num_row_groups):
                table = parquet.read_row_group(group, columns=list(self.columns.names))
                for start in range(0, table.num_rows, self.rows_per_part):
                    yield self._decode(file, table, group, start, first_row + start)
                first_row += table.num_rows

    def decode_one(self, file: DataFile, place: int, first_row: int) -> DecodedPart:
        """Return the part at `place`."""
        with self._parquet(file) as parquet:
            group, start = place >> _START_BITS, place & ((1 << _START_BITS) - 1)
            table = parquet.read_row_group(group, columns=list(self.columns.names))
            return self._decode(file, table, group, start, first_row)

    @contextlib.contextmanager
    def _parquet(self, file: DataFile) -> Iterator[arrow_parquet.ParquetFile]:
        """Open a file and check its columns; what pyarrow raises is translated."""
        with opened(file, unpack=False) as stream:
            try:
                parquet = arrow_parquet.ParquetFile(stream)
                self.columns.check(parquet.schema_arrow.names, where=str(file))
                yield parquet
            except pa.ArrowException as problem:
                reason = str(problem).split("\n")[0]
                raise DataError(
                    f"`{file}` cannot be read as Parquet: {reason}",
                    hint="is it damaged, cut off, or of another format?",
                ) from None

    def _decode(self, file: DataFile, table: pa.Table, group: int, start: int, first_row: int) -> DecodedPart:
        """Return some rows of a row group."""
        part = table.slice(start, self.rows_per_part)
        batch, bad = self.columns.samples(part)
        return DecodedPart(
            place=(group << _START_BITS) | start,
            num_rows=part.num_rows,
            batch=batch,
            bad_rows=tuple(
                BadRow(file=str(file), row=first_row + row + 1, reason=reason) for row, reason in sorted(bad.items())
            ),
        )
