"""WebDataset tars: neighbouring files of one name, unlike in their endings, are one sample.

    00001.cls  00001.json  00001.npy     a label, columns by the keys of an object, a tensor
    00002.cls  00002.json  00002.npy

`cls`, `id` and `index` are whole numbers, `txt` and `text` are text, a `json` object is a column a key (other values
are the column `json`), `npy` is a list. Other endings, such as images, are left out: decode them once, to tensors.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import numpy as np
import pyarrow as pa

from dovetail.data.errors import DataError
from dovetail.data.files.opening import DataFile, opened
from dovetail.data.files.tables import LABELS, TableDecoder, TablePart

WHOLE, TEXT = ("cls", "id", "index"), ("txt", "text")
LOOKED_AT = 1000
"""Samples by which the types of columns are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDatasetDecoder(TableDecoder):
    """Reads WebDataset tars."""

    format: ClassVar[str] = "webdataset"
    label_names: ClassVar[tuple[str, ...]] = (*LABELS, "cls")

    def types(self, file: DataFile) -> pa.Schema:
        """Return what the first samples look like."""
        with opened(file) as stream:
            samples = [sample for _, sample in itertools.islice(_samples(file, stream, 0), LOOKED_AT)]
        names = dict.fromkeys(name for sample in samples for name in sample)
        return pa.schema([(name, _array(file, name, [each.get(name) for each in samples]).type) for name in names])

    def _tables(self, file: DataFile, names: Sequence[str], place: int | None, first_row: int) -> Iterator[TablePart]:
        """Yield so many samples at a time."""
        types = self.types(file)
        own = self._own_names(file, types.names, names)
        with opened(file) as stream:
            samples = _samples(file, stream, place or 0)
            while part := list(itertools.islice(samples, self.rows_per_part)):
                columns = {name: _array(file, name, [each.get(name) for _, each in part], types) for name in own}
                yield TablePart(place=part[0][0], table=pa.table(columns or {"": pa.nulls(len(part))}))


def _samples(file: DataFile, stream: IO[bytes], place: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield samples with where they begin, from the byte `place` of the unpacked tar on."""
    if place:
        stream.seek(place)
    key: str | None = None
    begin, sample = place, dict[str, Any]()
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                folder, slash, name = member.name.rpartition("/")
                stem, dot, ending = name.partition(".")
                if not member.isfile() or not dot or name.startswith("."):
                    continue
                if folder + slash + stem != key:
                    if key is not None:
                        yield begin, sample
                    key, begin, sample = folder + slash + stem, place + member.offset, {}
                content = tar.extractfile(member)
                sample |= _values(file, member.name, ending.lower(), b"" if content is None else content.read())
        if key is not None:
            yield begin, sample
    except tarfile.TarError as problem:
        raise DataError(f"`{file}` cannot be read as a tar: {problem}", hint="is it damaged, or cut off?") from None


def _values(file: DataFile, name: str, ending: str, content: bytes) -> dict[str, Any]:
    """Return the columns that one file of a sample is."""
    try:
        if ending in WHOLE:
            return {ending: int(content)}
        if ending in TEXT:
            return {ending: content.decode()}
        if ending == "json":
            value = json.loads(content)
            return value if isinstance(value, dict) else {ending: value}
        if ending.rpartition(".")[2] == "npy":
            return {ending.removesuffix(".npy"): np.load(io.BytesIO(content), allow_pickle=False).tolist()}
    except (ValueError, EOFError) as problem:
        raise DataError(f"`{file}`: `{name}` cannot be read: {problem}", hint="write the sample again") from None
    return {}


def _array(file: DataFile, name: str, values: list[Any], types: pa.Schema | None = None) -> pa.Array:
    """Return the values of a column, of the type that the first samples have."""
    try:
        return pa.array(values, None if types is None else types.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as problem:
        raise DataError(
            f"`{file}`: `{name}` is not of one type: {str(problem).splitlines()[0]}",
            hint="write fractions as 1.0 where others are 1.5, and lists where others are lists",
        ) from None
