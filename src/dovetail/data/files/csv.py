"""CSV files with a header, packed or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from dovetail.data.errors import DataError
from dovetail.data.files.opening import DataFile, line_blocks, opened
from dovetail.data.files.tables import TableDecoder, TablePart
from dovetail.data.files.values import SUSPICIOUS

LOOKED_AT = 10_000
"""Rows by which the types of columns are known."""
DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvDecoder(TableDecoder):
    """Reads CSV: the first line names the columns; a value may stand in quotes but not span lines."""

    delimiter: str = ","
    format: ClassVar[str] = "csv"

    @property
    def identity(self) -> str:
        """The format, its delimiter and the columns."""
        return f"{self.format}/{self.version}/{self.rows_per_part}/{self.delimiter!r}/{self.columns!r}"

    def types(self, file: DataFile) -> pa.Schema:
        """Return what the first rows look like."""
        with opened(file) as stream:
            header, names = self._header(file, stream)
            if len(names) == 1 and (others := [each for each in DELIMITERS if each in names[0]]):
                raise DataError(
                    f"`{file}` has one column, `{names[0]}`, with `{self.delimiter}` between columns",
                    hint=f'is it another one? Then give delimiter="{others[0]}"',
                )
            blocks = line_blocks(stream, where=str(file), place=len(header), lines_per_block=LOOKED_AT)
            _, text, num_lines = next(blocks, (0, b"", 0))
        if not num_lines:
            return pa.schema([(name, pa.null()) for name in names])
        table = self._parse(file, names, names, text, num_lines, typed=True).table
        several = [name for name, values in zip(table.column_names, table.columns, strict=True) if self._parts(values)]
        return pa.schema(
            [(field.name, pa.list_(pa.string()) if field.name in several else field.type) for field in table.schema]
        )

    def _parts(self, values: pa.ChunkedArray) -> bool:
        """Say whether values of text look like several, with the separator between."""
        if not pa.types.is_string(values.type) or not len(values):
            return False
        holds = pc.sum(pc.match_substring(values, self.columns.separator)).as_py() or 0
        return bool(holds >= SUSPICIOUS * len(values))

    def _tables(self, file: DataFile, names: Sequence[str], place: int | None, first_row: int) -> Iterator[TablePart]:
        """Yield so many lines at a time, every value as text."""
        with opened(file) as stream:
            header, present = self._header(file, stream)
            own = self._own_names(file, present, names)
            start = len(header) if place is None else place
            blocks = line_blocks(stream, where=str(file), place=start, lines_per_block=self.rows_per_part)
            for block_place, text, num_lines in blocks:
                yield self._parse(file, present, own, text, num_lines, place=block_place, first_row=first_row)
                first_row += num_lines

    def _header(self, file: DataFile, stream: IO[bytes]) -> tuple[bytes, list[str]]:
        """Return the first line and the names in it."""
        header = stream.readline(1 << 20)
        try:
            words = header.decode("utf-8-sig").rstrip("\r\n").split(self.delimiter)
        except UnicodeDecodeError:
            raise DataError(f"`{file}` does not begin with a line of text", hint="is it a CSV file?") from None
        return header, [word.strip().strip('"') for word in words]

    def _parse(
        self,
        file: DataFile,
        names: list[str],
        wanted: list[str],
        text: bytes,
        num_lines: int,
        *,
        place: int = 0,
        first_row: int = 0,
        typed: bool = False,
    ) -> TablePart:
        """Return the rows of a block of text, and why those were skipped that do not have the right columns."""
        skipped: dict[int, str] = {}

        def skip(row: arrow_csv.InvalidRow) -> str:
            skipped[row.number - 1] = f"{row.actual_columns} columns instead of {row.expected_columns}"
            return "skip"

        where = f"`{file}`, rows {first_row + 1:,} to {first_row + num_lines:,}"
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(text),
                read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self.delimiter, invalid_row_handler=skip, ignore_empty_lines=False
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={} if typed else {name: pa.binary() for name in names},
                    include_columns=wanted,
                    strings_can_be_null=False,
                    null_values=[""],
                ),
            )
        except pa.ArrowInvalid as problem:
            raise DataError(f"{where}: {problem}", hint="is a quote left open?") from None
        if table.num_rows + len(skipped) != num_lines:
            raise DataError(
                f"{where}: {num_lines} lines hold {table.num_rows + len(skipped)} rows",
                hint="a value in quotes spans several lines, or a quote is left open",
            )
        return TablePart(place=place, table=table, skipped=skipped)
