"""From a table of named columns to samples: numbers, texts and ids as arrays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numba import njit
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.counter import stream_of
from dovetail.data.errors import DataError, DataWarning
from dovetail.data.files.decoder import DecodedPart, bad_rows_of
from dovetail.data.files.opening import DataFile
from dovetail.data.schema import Field, Schema, Slot
from dovetail.errors import did_you_mean
from dovetail.splitmix import mix

KEY_MASK = np.uint64((1 << 63) - 1)
_FNV_PRIME = np.uint64(0x100000001B3)

_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
OTHER_SEPARATORS = (",", ";", "|", " ", "\t")
SUSPICIOUS = 0.2
"""The part of a column's values with another separator from which on that is said."""


def slot_salt(slot: str) -> np.uint64:
    """Return what tells the ids of one slot from those of another."""
    return stream_of(0, f"slot/{slot}")


@njit(cache=True, nogil=True)
def key_of_bytes(text: NDArray[np.uint8], begin: int, end: int, salt: np.uint64) -> np.int64:  # pragma: no cover
    """Return the id of text[begin:end] in the slot with this salt: 63 bits, FNV-1a and then mixed."""
    word = salt
    for position in range(begin, end):
        word = (word ^ np.uint64(text[position])) * _FNV_PRIME
    return np.int64(mix(word) & KEY_MASK)


@njit(cache=True, nogil=True)
def keys_of_strings(
    text: NDArray[np.uint8], offsets: NDArray[np.int64], salt: np.uint64
) -> NDArray[np.int64]:  # pragma: no cover
    """Return the ids of many strings that lie one after the other."""
    keys = np.empty(offsets.size - 1, dtype=np.int64)
    for i in range(offsets.size - 1):
        keys[i] = key_of_bytes(text, offsets[i], offsets[i + 1], salt)
    return keys


def numbers_of(column: pa.ChunkedArray, bad: dict[int, str], name: str, *, may_lack: bool) -> NDArray[np.float64]:
    """Return a column as finite numbers, 0 where there is none; rows that have no number are put into `bad`."""
    values = column.combine_chunks()
    lacking = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False))
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.binary())
        lacking = lacking | np.asarray(
            pc.equal(pc.binary_length(values), 0).fill_null(True).to_numpy(zero_copy_only=False)
        )
        shaped = pc.fill_null(pc.match_substring_regex(values, _NUMBER), False)
        complain(bad, ~np.asarray(shaped.to_numpy(zero_copy_only=False)) & ~lacking, f"`{name}` is not a number")
        values = pc.if_else(shaped, values, pa.scalar(None, pa.binary())).cast(pa.string())
    elif not (
        pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
    ):
        raise DataError(f"column `{name}` holds {values.type}, not numbers", hint="name it among the slots instead")
    numbers = np.array(pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False))
    with np.errstate(over="ignore"):
        finite = np.isfinite(numbers.astype(np.float32))
    complain(bad, ~finite, f"`{name}` is not a finite number")
    if not may_lack:
        complain(bad, lacking, f"`{name}` is missing")
    numbers[~finite] = 0.0
    return numbers


def tensor_of(
    column: pa.ChunkedArray,
    bad: dict[int, str],
    name: str,
    separator: str,
    shape: tuple[int, ...] | None,
    *,
    whole: bool = False,
) -> torch.Tensor:
    """Return a column of numbers, of lists of them (nested ones too) or of text with numbers in it as one tensor.

    Whole numbers are int64, others float32; text has no type, and is whole where that is said. Shorter lists get zeros
    behind; what does not fit `shape` goes into `bad`.
    """
    values = column.combine_chunks()
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        words = pc.split_pattern(pc.fill_null(values.cast(pa.string()), ""), separator)
        try:
            values = words.cast(pa.list_(pa.int64() if whole else pa.float64()))
        except pa.ArrowInvalid as problem:
            kind = "whole numbers" if whole else "numbers"
            raise DataError(
                f"field `{name}` is not {kind} with `{separator}` between: {problem}", hint="give its `separator`"
            ) from None
    if is_list(values.type):
        rows = [_nested(row) for row in values.to_pylist()]
    else:
        numbers = numbers_of(column, bad, name, may_lack=False)
        is_whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        return torch.from_numpy(numbers.astype(np.int64 if is_whole else np.float32))
    dims = max((row.ndim for row in rows), default=1)
    for number, row in enumerate(rows):
        if row.ndim != dims and row.size:
            bad.setdefault(number, f"`{name}` has {row.ndim} dimensions, others {dims}")
        elif shape is not None and row.size != int(np.prod(shape)):
            bad.setdefault(number, f"`{name}` has {row.size} numbers, not {' x '.join(map(str, shape))}")
        elif not np.isfinite(row).all():
            bad.setdefault(number, f"`{name}` is not finite")
    good = [row if number not in bad else row[:0] for number, row in enumerate(rows)]
    longest = [max((row.shape[d] for row in good if row.ndim == dims), default=0) for d in range(dims)]
    if shape is not None:
        longest = [int(np.prod(shape))] if dims == 1 else longest
    is_whole = whole or all(np.issubdtype(row.dtype, np.integer) for row in rows if row.size)
    packed = np.zeros((len(rows), *longest), dtype=np.int64 if is_whole else np.float32)
    for number, row in enumerate(good):
        if row.ndim == dims:
            packed[number][tuple(slice(length) for length in row.shape)] = row
    tensor = torch.from_numpy(packed)
    return tensor.reshape(len(rows), *shape) if shape is not None else tensor


def _nested(row: object) -> NDArray[np.generic]:
    """Return a list of numbers, or of such lists, as an array."""
    if row is None:
        return np.zeros(0)
    try:
        return np.asarray(row)
    except ValueError:
        raise DataError("a field's lists within lists are of unlike lengths", hint="make them alike") from None


def is_list(kind: pa.DataType) -> bool:
    """Say whether values are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def complain(bad: dict[int, str], wrong: NDArray[np.bool_], reason: str) -> None:
    """Put the rows that are wrong into `bad`, unless something else was wrong with them before."""
    for row in np.flatnonzero(wrong):
        bad.setdefault(int(row), reason)


def interleave(
    bags: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], num_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and offsets sample by sample, from (ids, lengths) slot by slot."""
    lengths = np.zeros((num_rows, len(bags)), dtype=np.int64)
    for slot, (_, counts) in enumerate(bags):
        lengths[:, slot] = counts
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    ids = np.empty(offsets[-1], dtype=np.int64)
    for slot, (values, counts) in enumerate(bags):
        begins = offsets[:-1].reshape(num_rows, len(bags))[:, slot]
        own_begins = np.cumsum(counts) - counts
        ids[np.repeat(begins - own_begins, counts) + np.arange(values.size)] = values
    return ids, offsets


def bags_of(column: pa.ChunkedArray, name: str, separator: str | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of a slot and how many each row has; a single value that is missing has an id of its own."""
    values = column.combine_chunks()
    if separator is not None and not is_list(values.type):
        text = pc.fill_null(_text(values, name).cast(pa.string()), "")
        warn_of_separator(text, name, separator)
        values = pc.split_pattern(text, separator)
    if is_list(values.type):
        counts = np.array(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        values = values.flatten()
        if separator is not None and values.type == pa.string():  # nothing between separators is no value
            filled = np.asarray(pc.greater(pc.binary_length(values), 0).to_numpy(zero_copy_only=False))
            row_of = np.repeat(np.arange(counts.size), counts)
            counts = np.bincount(row_of[filled], minlength=counts.size).astype(np.int64)
            values = values.filter(pa.array(filled))
    else:
        counts = np.ones(len(values), dtype=np.int64)
    return _keys(pc.fill_null(_text(values, name), b""), name), counts


def warn_of_separator(text: pa.Array, name: str, separator: str) -> None:
    """Say where a multi-valued column looks as if its values were parted by something else."""
    if not len(text) or pc.any(pc.match_substring(text, separator)).as_py():
        return
    for other in OTHER_SEPARATORS:
        holds = pc.sum(pc.match_substring(text, other)).as_py() or 0
        if other != separator and holds >= SUSPICIOUS * len(text):
            warnings.warn(
                f"no value of the multi-valued column `{name}` has the separator `{separator}`, but {holds:,} of "
                f'{len(text):,} have `{other}`: is that it? Then give separator="{other}"',
                DataWarning,
                stacklevel=2,
            )
            return


def _text(values: pa.Array, name: str) -> pa.Array:
    """Return values as bytes: text as it is, whole numbers in decimal digits."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values = values.cast(pa.string())
    elif not (
        pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)
    ):
        raise DataError(f"slot `{name}` holds {kind}", hint="slots hold text, whole numbers, or lists of them")
    return values.cast(pa.binary())


def _keys(values: pa.Array, name: str) -> NDArray[np.int64]:
    """Return the ids of values as bytes."""
    _, offsets_buffer, text_buffer = values.buffers()
    offsets = (
        np.frombuffer(offsets_buffer, dtype=np.int32)[values.offset : values.offset + len(values) + 1]
        if len(values)
        else np.zeros(1, dtype=np.int32)
    )
    text = (
        np.frombuffer(text_buffer, dtype=np.uint8)
        if text_buffer is not None and len(values)
        else np.zeros(0, dtype=np.uint8)
    )
    return np.asarray(keys_of_strings(text, offsets.astype(np.int64), slot_salt(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns are what.

    A multi-valued slot, a further field and a label of several numbers are columns of lists, or of text with
    `separator` between values. Several label columns make one label of as many numbers; without any it is 0.
    """

    label: str | tuple[str, ...] | None = "label"
    dense: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    separator: str = "|"
    weight: str | None = None
    """How much a sample counts, 0 or more."""
    fields: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """What the numbers of a further field are to be arranged as, e.g. (("pixels", (3, 32, 32)),)."""
    whole: tuple[str, ...] = ()
    """Further fields of text that hold whole numbers, such as ids; those of others are read as fractions."""

    def __post_init__(self) -> None:
        """Refuse a multi-valued slot that is no slot, and a shape of what is no field."""
        for name, _ in self.shapes:
            if name not in self.fields:
                raise DataError(f"`{name}` has a shape but is no field", hint=f"fields are: {', '.join(self.fields)}")
        for name in self.whole:
            if name not in self.fields:
                raise DataError(f"`{name}` is whole but no field", hint=f"fields are: {', '.join(self.fields)}")
        for name in self.multi_valued:
            if name not in self.slots:
                raise DataError(f"`{name}` is multi-valued but no slot", hint=f"slots are: {', '.join(self.slots)}")

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        weight = () if self.weight is None else (self.weight,)
        return (*self.labels, *weight, *self.dense, *self.slots, *self.fields)

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of the label."""
        return () if self.label is None else (self.label,) if isinstance(self.label, str) else self.label

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        return Schema(
            dense=self.dense,
            slots=tuple(Slot(name=name, multi_valued=name in self.multi_valued) for name in self.slots),
            fields=tuple(
                Field(
                    name=name,
                    shape=dict(self.shapes).get(name, (None,)),
                    dtype="int64" if name in self.whole else "float32",
                )
                for name in self.fields
            ),
            label_shape=(len(self.label),) if isinstance(self.label, tuple) else (),
        )

    def check(self, present: Sequence[str], *, where: str) -> None:
        """Refuse a file that lacks one of the columns."""
        for name in self.names:
            if name not in present:
                raise DataError(f"`{where}` has no column `{name}`", hint=did_you_mean(name, present))
        if twice := [name for name in self.names if list(present).count(name) > 1]:
            raise DataError(f"`{where}` has two columns `{twice[0]}`", hint="rename one of them")

    def part(
        self, file: DataFile, place: int, first_row: int, table: pa.Table, skipped: Mapping[int, str] | None = None
    ) -> DecodedPart:
        """Return the rows of a table as a part of `file`; `skipped` are rows of the part that the table lacks."""
        skipped = skipped or {}
        num_rows = table.num_rows + len(skipped)
        batch, bad = self.samples(table)
        if skipped:
            kept = [row for row in range(num_rows) if row not in skipped]
            batch = batch.with_sample_ids(batch.sample_ids.new_tensor(kept)[batch.sample_ids])
            bad = {kept[row]: reason for row, reason in bad.items()} | dict(skipped)
        return DecodedPart(place=place, num_rows=num_rows, batch=batch, bad_rows=bad_rows_of(file, first_row, bad))

    def samples(self, table: pa.Table) -> tuple[Batch, dict[int, str]]:
        """Return the rows that are not broken, with their row numbers as sample ids, and why the others are."""
        bad: dict[int, str] = {}
        labels = self._labels(table, bad)
        weights = None
        if self.weight is not None:
            numbers = numbers_of(table[self.weight], bad, self.weight, may_lack=False)
            complain(bad, numbers < 0, f"`{self.weight}` is below 0")
            weights = torch.from_numpy(numbers.astype(np.float32))
        dense = np.zeros((table.num_rows, len(self.dense)), dtype=np.float32)
        for position, name in enumerate(self.dense):
            dense[:, position] = numbers_of(table[name], bad, name, may_lack=True)
        many = dict.fromkeys(self.multi_valued, self.separator)
        bags = [bags_of(table[name], name, many.get(name)) for name in self.slots]
        ids, offsets = interleave(bags, table.num_rows)
        batch = Batch(
            sample_ids=torch.arange(table.num_rows),
            dense=torch.from_numpy(dense),
            ids=torch.from_numpy(ids),
            offsets=torch.from_numpy(offsets),
            labels=labels,
            weights=weights,
            extra={
                name: tensor_of(
                    table[name], bad, name, self.separator, dict(self.shapes).get(name), whole=name in self.whole
                )
                for name in self.fields
            },
        )
        if bad:
            good = np.setdiff1d(np.arange(table.num_rows), np.fromiter(bad, dtype=np.int64))
            batch = batch.take(torch.from_numpy(good))
        return batch, bad

    def _labels(self, table: pa.Table, bad: dict[int, str]) -> torch.Tensor:
        """Return the labels: float32 [n], or [n, ...] where a sample has several numbers."""
        if not self.labels:
            return torch.zeros(table.num_rows)
        if isinstance(self.label, str) and is_list(table[self.label].type):
            return tensor_of(table[self.label], bad, self.label, self.separator, None).float()
        columns = [numbers_of(table[name], bad, name, may_lack=False) for name in self.labels]
        labels = columns[0] if isinstance(self.label, str) else np.stack(columns, axis=1)
        return torch.from_numpy(labels.astype(np.float32))
