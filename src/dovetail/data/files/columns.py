"""From a table of named columns to samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.files.decoder import DecodedPart, bad_rows_of
from dovetail.data.files.keys import keys_of_strings, slot_salt
from dovetail.data.files.opening import DataFile
from dovetail.data.schema import Schema, Slot
from dovetail.errors import did_you_mean

_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns are what; a multi-valued slot is a column of lists, or of text with `separator` between values."""

    label: str = "label"
    dense: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    separator: str = "|"
    weight: str | None = None
    """How much a sample counts, 0 or more."""

    def __post_init__(self) -> None:
        """Refuse a multi-valued slot that is no slot."""
        for name in self.multi_valued:
            if name not in self.slots:
                raise DataError(f"`{name}` is multi-valued but no slot", hint=f"slots are: {', '.join(self.slots)}")

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (self.label, *((self.weight,) if self.weight is not None else ()), *self.dense, *self.slots)

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        return Schema(
            dense=self.dense,
            slots=tuple(Slot(name=name, multi_valued=name in self.multi_valued) for name in self.slots),
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
        labels = _numbers(table[self.label], bad, self.label, may_lack=False)
        _complain(bad, (labels != 0) & (labels != 1), f"`{self.label}` is not 0 or 1")
        weights = None
        if self.weight is not None:
            numbers = _numbers(table[self.weight], bad, self.weight, may_lack=False)
            _complain(bad, numbers < 0, f"`{self.weight}` is below 0")
            weights = torch.from_numpy(numbers.astype(np.float32))
        dense = np.zeros((table.num_rows, len(self.dense)), dtype=np.float32)
        for position, name in enumerate(self.dense):
            dense[:, position] = _numbers(table[name], bad, name, may_lack=True)
        bags = [_bags(table[name], name, self.separator if name in self.multi_valued else None) for name in self.slots]
        ids, offsets = interleave(bags, table.num_rows)
        batch = Batch(
            sample_ids=torch.arange(table.num_rows),
            dense=torch.from_numpy(dense),
            ids=torch.from_numpy(ids),
            offsets=torch.from_numpy(offsets),
            labels=torch.from_numpy(labels.astype(np.float32)),
            weights=weights,
        )
        if bad:
            good = np.setdiff1d(np.arange(table.num_rows), np.fromiter(bad, dtype=np.int64))
            batch = batch.take(torch.from_numpy(good))
        return batch, bad


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


def _numbers(column: pa.ChunkedArray, bad: dict[int, str], name: str, *, may_lack: bool) -> NDArray[np.float64]:
    """Return a column as finite numbers, 0 where there is none; rows that have no number are put into `bad`."""
    values = column.combine_chunks()
    lacking = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False))
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.binary())
        lacking = lacking | np.asarray(
            pc.equal(pc.binary_length(values), 0).fill_null(True).to_numpy(zero_copy_only=False)
        )
        shaped = pc.fill_null(pc.match_substring_regex(values, _NUMBER), False)
        _complain(bad, ~np.asarray(shaped.to_numpy(zero_copy_only=False)) & ~lacking, f"`{name}` is not a number")
        values = pc.if_else(shaped, values, pa.scalar(None, pa.binary())).cast(pa.string())
    elif not (
        pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
    ):
        raise DataError(f"column `{name}` holds {values.type}, not numbers", hint="name it among the slots instead")
    numbers = np.array(pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False))
    with np.errstate(over="ignore"):
        finite = np.isfinite(numbers.astype(np.float32))
    _complain(bad, ~finite, f"`{name}` is not a finite number")
    if not may_lack:
        _complain(bad, lacking, f"`{name}` is missing")
    numbers[~finite] = 0.0
    return numbers


def _bags(column: pa.ChunkedArray, name: str, separator: str | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of a slot and how many each row has; a single value that is missing has an id of its own."""
    values = column.combine_chunks()
    if separator is not None and not _is_list(values.type):
        values = pc.split_pattern(pc.fill_null(_text(values, name).cast(pa.string()), ""), separator)
    if _is_list(values.type):
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


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _complain(bad: dict[int, str], wrong: NDArray[np.bool_], reason: str) -> None:
    """Put the rows that are wrong into `bad`, unless something else was wrong with them before."""
    for row in np.flatnonzero(wrong):
        bad.setdefault(int(row), reason)
