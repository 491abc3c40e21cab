"""Columns of text and whole numbers as the ids of slots."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dovetail.data.errors import DataError, DataWarning
from dovetail.data.files.keys import keys_of_strings, slot_salt
from dovetail.data.files.numbers import is_list

OTHER_SEPARATORS = (",", ";", "|", " ", "\t")
SUSPICIOUS = 0.2
"""The part of a column's values with another separator from which on that is said."""


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
