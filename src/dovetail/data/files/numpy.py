"""NumPy's files: arrays by name (`.npz`), one array with named fields, or a plain one (`.npy`)."""

from __future__ import annotations

import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.data.errors import DataError
from dovetail.data.files.opening import DataFile, opened
from dovetail.data.files.tables import TableDecoder, TablePart

MATRICES = ("dense", "ids")
"""Arrays of two dimensions whose columns are columns of their own: dense_0, dense_1, ..."""
PLAIN = "x"
"""What the columns of an array without names begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyDecoder(TableDecoder):
    """Reads NumPy's files; the first dimension of every array is the samples, further ones make lists."""

    format: ClassVar[str] = "numpy"

    def types(self, file: DataFile) -> pa.Schema:
        """Return the types of the arrays."""
        return _types(file, _arrays(file))

    def layout(self, file: DataFile) -> tuple[tuple[int, int], ...]:
        """Return where parts begin and how many rows they have; refuse columns of the wrong kind."""
        arrays = _arrays(file)
        self._check_kinds(file, _types(file, arrays))
        total, step = _length(file, arrays), self.rows_per_part
        return tuple((start, min(step, total - start)) for start in range(0, total, step))

    def _tables(self, file: DataFile, names: Sequence[str], place: int | None, first_row: int) -> Iterator[TablePart]:
        """Yield so many rows of the arrays at a time."""
        arrays = _arrays(file)
        own = self._own_names(file, list(arrays), names)
        total = _length(file, arrays)
        for start in range(place or 0, total, self.rows_per_part):
            rows = {name: arrays[name][start : start + self.rows_per_part] for name in own}
            count = min(self.rows_per_part, total - start)
            table = pa.table({name: _column(array, name, file) for name, array in rows.items()})
            if not own:  # all are the names of folders
                table = pa.table({PLAIN: pa.nulls(count)})
            yield TablePart(place=start, table=table)


_lock = threading.Lock()
"""Held while a file is loaded: NumPy reads headers by Python's own parser, which two threads at once make fail."""
_loaded: OrderedDict[tuple[str, int, str], dict[str, NDArray[Any]]] = OrderedDict()
MOST_LOADED = 2
"""Files whose arrays stay in memory: a packed one is unpacked as a whole, whichever part of it is wanted."""


def _arrays(file: DataFile) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name; those of a local plain file stay on disk until they are read."""
    key = str(file), file.num_bytes, file.version
    with _lock:
        if key not in _loaded:
            _loaded[key] = _read(file)
            while len(_loaded) > MOST_LOADED:
                _loaded.popitem(last=False)
        _loaded.move_to_end(key)
        return _loaded[key]


def _read(file: DataFile) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file."""
    try:
        if file.is_local and file.path.endswith(".npy"):
            loaded: Any = np.load(file.path, mmap_mode="r", allow_pickle=False)
        else:
            with opened(file) as stream:
                loaded = np.load(stream, allow_pickle=False)
                if isinstance(loaded, Mapping):
                    loaded = {name: loaded[name] for name in loaded}
    except (ValueError, EOFError, zipfile.BadZipFile) as problem:
        raise DataError(
            f"`{file}` cannot be read as NumPy's: {problem}",
            hint="arrays of Python objects are not read; is it damaged, or of another format?",
        ) from None
    if isinstance(loaded, np.ndarray):
        loaded = _named(loaded, file)
    found: dict[str, NDArray[Any]] = {}
    for name, array in loaded.items():
        if array.ndim == 0:
            raise DataError(f"`{file}`: `{name}` is a single value", hint="the first dimension is the samples")
        if name in MATRICES and array.ndim == 2:
            found |= {f"{name}_{position}": array[:, position] for position in range(array.shape[1])}
        else:
            found[name] = array
    return found


def _types(file: DataFile, arrays: Mapping[str, NDArray[Any]]) -> pa.Schema:
    """Return the types of arrays as columns."""
    return pa.schema([(name, _column(array[:0], name, file).type) for name, array in arrays.items()])


def _length(file: DataFile, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return how many samples arrays have; refuse unlike ones."""
    lengths = {name: len(array) for name, array in arrays.items()}
    total = next(iter(lengths.values()), 0)
    if odd := [name for name, length in lengths.items() if length != total]:
        raise DataError(
            f"`{file}`: `{odd[0]}` has {lengths[odd[0]]:,} samples, others {total:,}",
            hint="the first dimension of every array is the samples",
        )
    return total


def _named(array: NDArray[Any], file: DataFile) -> dict[str, NDArray[Any]]:
    """Return the columns of one array: its named fields, or x_0, x_1, ..."""
    if array.dtype.names is not None:
        return {name: array[name] for name in array.dtype.names}
    if array.ndim == 1:
        return {f"{PLAIN}_0": array}
    if array.ndim == 2:
        return {f"{PLAIN}_{position}": array[:, position] for position in range(array.shape[1])}
    raise DataError(
        f"`{file}` is one array of {array.ndim} dimensions, with no label beside it",
        hint="write several under their names: numpy.savez(path, pixels=..., label=...)",
    )


def _column(array: NDArray[Any], name: str, file: DataFile) -> pa.Array:
    """Return an array as a column: lists where it has several dimensions."""
    if array.dtype.kind == "M":
        array = array.astype("datetime64[ns]")
    if array.dtype.kind not in "biufSUM":
        raise DataError(f"`{file}`: `{name}` holds {array.dtype}", hint="numbers, text, bools and dates are read")
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    flat = np.ascontiguousarray(array).reshape(-1)
    text = {"U": pa.string(), "S": pa.binary()}.get(array.dtype.kind)
    values = pa.array(flat) if text is None else pa.array(flat.tolist(), text)
    for length in reversed(array.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    return values
