"""CSV files with a header, packed or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dovetail.data.errors import DataError
from dovetail.data.files.columns import Columns
from dovetail.data.files.decoder import ROWS_PER_PART, DecodedPart
from dovetail.data.files.opening import DataFile, line_blocks, opened
from dovetail.data.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvDecoder:
    """Reads CSV: the first line names the columns; a value may stand in quotes but not span lines."""

    columns: Columns
    delimiter: str = ","
    rows_per_part: int = ROWS_PER_PART

    @property
    def schema(self) -> Schema:
        """What the columns say."""
        return self.columns.schema

    @property
    def identity(self) -> str:
        """The format and the columns."""
        return f"csv/1/{self.rows_per_part}/{self.delimiter!r}/{self.columns!r}"

    def decode(self, file: DataFile, place: int | None = None, first_row: int = 0) -> Iterator[DecodedPart]:
        """Yield the parts of a file, from the one at `place` on."""
        with opened(file) as stream:
            header, names = self._header(file, stream)
            start = len(header) if place is None else place
            blocks = line_blocks(stream, where=str(file), place=start, lines_per_block=self.rows_per_part)
            for block_place, text, num_lines in blocks:
                table, skipped = self._parse(file, names, text, num_lines, first_row)
                yield self.columns.part(file, block_place, first_row, table, skipped)
                first_row += num_lines

    def _header(self, file: DataFile, stream: IO[bytes]) -> tuple[bytes, list[str]]:
        """Return the first line and the names in it."""
        header = stream.readline(1 << 20)
        try:
            words = header.decode("utf-8-sig").rstrip("\r\n").split(self.delimiter)
        except UnicodeDecodeError:
            raise DataError(f"`{file}` does not begin with a line of text", hint="is it a CSV file?") from None
        names = [word.strip().strip('"') for word in words]
        self.columns.check(names, where=str(file))
        return header, names

    def _parse(
        self, file: DataFile, names: list[str], text: bytes, num_lines: int, first_row: int
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return the rows of a block of text, and why those were skipped that do not have the right columns."""
        skipped: dict[int, str] = {}

        def skip(row: arrow_csv.InvalidRow) -> str:
            skipped[row.number - 1] = f"{row.actual_columns} columns instead of {row.expected_columns}"
            return "skip"

        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(text),
                read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self.delimiter, invalid_row_handler=skip, ignore_empty_lines=False
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={name: pa.binary() for name in names},
                    include_columns=list(self.columns.names),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as problem:
            raise DataError(
                f"`{file}`, rows {first_row + 1:,} to {first_row + num_lines:,}: {problem}",
                hint="is a quote left open?",
            ) from None
        if table.num_rows + len(skipped) != num_lines:
            raise DataError(
                f"`{file}`, rows {first_row + 1:,} to {first_row + num_lines:,}: {num_lines} lines hold "
                f"{table.num_rows + len(skipped)} rows",
                hint="a value in quotes spans several lines, or a quote is left open",
            )
        return table, skipped
