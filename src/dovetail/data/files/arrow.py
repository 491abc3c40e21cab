"""Arrow IPC files and streams, which Feather and Hugging Face data sets on disk are too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from dovetail.data.errors import DataError
from dovetail.data.files.opening import DataFile, file_errors, is_packed, opened
from dovetail.data.files.parquet import START_BITS, arrow_errors, sliced
from dovetail.data.files.remote import asked_again, known, system_of
from dovetail.data.files.tables import TableDecoder, TablePart

FILE_MAGIC, OLD_FEATHER = b"ARROW1", b"FEA1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowDecoder(TableDecoder):
    """Reads Arrow's own files, a record batch at a time."""

    format: ClassVar[str] = "arrow"

    def types(self, file: DataFile) -> pa.Schema:
        """Return what the file says itself."""
        with _reader(file) as reader:
            return reader.schema

    def layout(self, file: DataFile) -> tuple[tuple[int, int], ...]:
        """Return place and rows of each record batch; refuse columns of the wrong kind."""
        with _reader(file) as reader:
            self._check_kinds(file, reader.schema)
            return tuple((number << START_BITS, batch.num_rows) for number, batch in _batches(reader, 0))

    def _tables(self, file: DataFile, names: Sequence[str], place: int | None, first_row: int) -> Iterator[TablePart]:
        """Yield record batches, large ones in several parts."""
        first, start = (place or 0) >> START_BITS, (place or 0) & ((1 << START_BITS) - 1)
        with _reader(file) as reader:
            own = self._own_names(file, reader.schema.names, names)
            for number, batch in _batches(reader, first):
                table = pa.Table.from_batches([batch]).select(own)
                yield from sliced(table, number, start, self.rows_per_part)
                start = 0


@contextlib.contextmanager
def _reader(file: DataFile) -> Iterator[Any]:
    """Open a file, or a stream, which has no list of its batches; what pyarrow raises is translated."""
    with opened(file) as stream, arrow_errors(file, "Arrow"):
        head = stream.read(8)
        stream.seek(0)
        if head.startswith(OLD_FEATHER):
            raise DataError(
                f"`{file}` is of the first version of Feather", hint="write it again: pyarrow.feather.write_feather"
            )
        mapped = pa.memory_map(file.path) if file.is_local and not is_packed(file) else stream
        yield pa.ipc.open_file(mapped) if head.startswith(FILE_MAGIC) else pa.ipc.open_stream(mapped)


def _batches(reader: Any, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield record batches from the one numbered `first` on, with their numbers."""
    if hasattr(reader, "num_record_batches"):
        for number in range(first, reader.num_record_batches):
            yield number, reader.get_batch(number)
        return
    for number, batch in enumerate(reader):
        if number >= first:
            yield number, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceDecoder(ArrowDecoder):
    """Reads the Arrow files of a Hugging Face data set that `save_to_disk` wrote."""

    format: ClassVar[str] = "huggingface"


def saved_dataset_files(paths: str | Sequence[str]) -> list[str]:
    """Return the Arrow files of folders that `Dataset.save_to_disk` wrote."""
    found: list[str] = []
    for path in [paths] if isinstance(paths, str) else paths:
        with file_errors(path):
            system, folder = system_of(path)
            splits, state = folder + "/dataset_dict.json", folder + "/state.json"
            if known(system, splits) is not None:
                names = _json(system, splits).get("splits", [])
                raise DataError(
                    f"`{path}` holds several data sets: {', '.join(names)}",
                    hint=f"name one: {path.rstrip('/')}/{names[0] if names else 'train'}",
                )
            if known(system, state) is None:
                raise DataError(
                    f"`{path}` is no data set that `save_to_disk` wrote: it has no state.json",
                    hint="name the folder that was given to save_to_disk",
                )
            files = [each["filename"] for each in _json(system, state).get("_data_files", [])]
            if not files:
                raise DataError(f"`{path}` names no files", hint="save the data set again")
            found += [system.unstrip_protocol(f"{folder}/{name}") for name in files]
    return found


def _json(system: Any, path: str) -> dict[str, Any]:
    """Return what a small file holds."""
    try:
        return msgspec.json.decode(asked_again(lambda: system.cat_file(path)), type=dict[str, Any])
    except msgspec.DecodeError as problem:
        raise DataError(f"`{path}` cannot be read: {problem}", hint="save the data set again") from None
