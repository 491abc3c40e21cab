"""Columns of numbers, and of lists of them, as arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from dovetail.data.errors import DataError

_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"


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
