"""Parquet files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as arrow_parquet

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

    def decode(self, file: DataFile, place: int | None = None, first_row: int = 0) -> Iterator[DecodedPart]:
        """Yield the parts of a file, from the one at `place` on."""
        first_group, start = (place or 0) >> _START_BITS, (place or 0) & ((1 << _START_BITS) - 1)
        with self._parquet(file) as parquet:
            for group in range(first_group, parquet.metadata.num_row_groups):
                table = parquet.read_row_group(group, columns=list(self.columns.names))
                while start < table.num_rows:
                    rows = table.slice(start, self.rows_per_part)
                    yield self.columns.part(file, (group << _START_BITS) | start, first_row, rows)
                    start += rows.num_rows
                    first_row += rows.num_rows
                start = 0

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
