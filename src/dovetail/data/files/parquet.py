"""Parquet files."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as arrow_parquet

from dovetail.data.errors import DataError
from dovetail.data.files.opening import DataFile, opened_by_arrow
from dovetail.data.files.tables import TableDecoder, TablePart

START_BITS = 40
"""A place is the number of a piece of a file, and below it the row within the piece where a part starts."""
MOST_FOOTERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetDecoder(TableDecoder):
    """Reads Parquet, one row group at a time and only the columns that are wanted."""

    format: ClassVar[str] = "parquet"

    def layout(self, file: DataFile) -> tuple[tuple[int, int], ...]:
        """Return place and rows of each row group, from the footer; refuse columns of the wrong kind."""
        with self._parquet(file) as parquet:
            self._check_kinds(file, parquet.schema_arrow)
            groups = (parquet.metadata.row_group(group) for group in range(parquet.metadata.num_row_groups))
            return tuple((number << START_BITS, group.num_rows) for number, group in enumerate(groups))

    def types(self, file: DataFile) -> pa.Schema:
        """Return what the file says itself."""
        with self._parquet(file) as parquet:
            return parquet.schema_arrow

    def _tables(self, file: DataFile, names: Sequence[str], place: int | None, first_row: int) -> Iterator[TablePart]:
        """Yield row groups, large ones in several parts."""
        first, start = (place or 0) >> START_BITS, (place or 0) & ((1 << START_BITS) - 1)
        with self._parquet(file) as parquet:
            own = self._own_names(file, parquet.schema_arrow.names, names)
            for group in range(first, parquet.metadata.num_row_groups):
                yield from sliced(parquet.read_row_group(group, columns=own), group, start, self.rows_per_part)
                start = 0

    @contextlib.contextmanager
    def _parquet(self, file: DataFile) -> Iterator[arrow_parquet.ParquetFile]:
        """Open a file; what pyarrow raises is translated."""
        with opened_by_arrow(file) as stream, arrow_errors(file, "Parquet"):
            footer = _footers.get(file)
            # Of a file elsewhere the columns of a row group are fetched together, in a few large ranges.
            parquet = arrow_parquet.ParquetFile(stream, metadata=footer, pre_buffer=not file.is_local)
            if footer is None:
                _footers.keep(file, parquet.metadata)
            yield parquet


class Footers:
    """What the last few files say at their ends, which takes longer to read than a part does."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, int, str], arrow_parquet.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, file: DataFile) -> arrow_parquet.FileMetaData | None:
        """Return the footer of a file, if it is one of them."""
        with self._lock:
            return self._found.get((str(file), file.num_bytes, file.version))

    def keep(self, file: DataFile, footer: arrow_parquet.FileMetaData) -> None:
        """Take in the footer of a file."""
        with self._lock:
            self._found[str(file), file.num_bytes, file.version] = footer
            while len(self._found) > MOST_FOOTERS:
                self._found.popitem(last=False)


_footers = Footers()


def sliced(table: pa.Table, piece: int, start: int, rows_per_part: int) -> Iterator[TablePart]:
    """Yield a piece of a file from row `start` on, in parts."""
    while start < table.num_rows:
        rows = table.slice(start, rows_per_part)
        yield TablePart(place=(piece << START_BITS) | start, table=rows)
        start += rows.num_rows


@contextlib.contextmanager
def arrow_errors(file: DataFile, kind: str) -> Iterator[None]:
    """Translate what pyarrow raises about a file."""
    try:
        yield
    except pa.ArrowException as problem:
        reason = str(problem).split("\n")[0]
        raise DataError(
            f"`{file}` cannot be read as {kind}: {reason}", hint="is it damaged, cut off, or of another format?"
        ) from None
