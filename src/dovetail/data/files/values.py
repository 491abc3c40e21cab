"""From a column of a table to arrays: numbers, ids of categories, tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numba import carray, njit  # type: ignore[attr-defined]
from numpy.typing import NDArray

from dovetail.data.batch import even_offsets
from dovetail.data.counter import stream_of
from dovetail.data.errors import DataError, DataWarning
from dovetail.data.pointers import FAR, pointer
from dovetail.data.read_rows import NUMBER, WHOLE_BELOW
from dovetail.splitmix import mix

KEY_MASK = np.uint64((1 << 63) - 1)
_FNV_PRIME = np.uint64(0x100000001B3)

OTHER_SEPARATORS = (",", ";", "|", " ", "\t")
SUSPICIOUS = 0.2
"""The part of a column's values with another separator from which on that is said."""


_NEAR = 32
_PLAIN = (pa.float32(), pa.float64(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32())


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


@njit(cache=True, nogil=True, inline="always")
def key_of_whole_number(value: np.int64, salt: np.uint64, digits: NDArray[np.uint64]) -> np.int64:  # pragma: no cover
    """Return the id of a whole number, which is that of its decimal digits; `digits` has room for 20."""
    word, rest, count = salt, np.uint64(value), 0
    if value < 0:
        word = (word ^ np.uint64(45)) * _FNV_PRIME  # a minus
        rest = np.uint64(0) - rest
    while count == 0 or rest:
        digits[count] = np.uint64(48) + rest % np.uint64(10)
        rest //= np.uint64(10)
        count += 1
    for k in range(count - 1, -1, -1):
        word = (word ^ digits[k]) * _FNV_PRIME
    return np.int64(mix(word) & KEY_MASK)


@njit(cache=True, nogil=True)
def keys_of_whole_numbers(
    values: NDArray[np.int64], lacking: NDArray[np.bool_], salt: np.uint64
) -> NDArray[np.int64]:  # pragma: no cover
    """Return the ids of whole numbers; of one that lacks, that of no text."""
    keys, digits = np.empty(values.size, dtype=np.int64), np.empty(20, dtype=np.uint64)
    for i in range(values.size):
        if lacking[i]:
            keys[i] = np.int64(mix(salt) & KEY_MASK)
        else:
            keys[i] = key_of_whole_number(values[i], salt, digits)
    return keys


def plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column in one piece, of a type that is computed with: no dictionary, no view, no decimal."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        values, kind = values.storage, values.storage.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if str(kind) in ("string_view", "binary_view"):
        return values.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary())
    if pa.types.is_decimal(kind):
        return values.cast(pa.float64(), safe=False)
    return values


def is_text(kind: pa.DataType) -> bool:
    """Say whether values are text, or bytes."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def numbers_of(column: pa.ChunkedArray, bad: dict[int, str], name: str, *, may_lack: bool) -> NDArray[np.float64]:
    """Return a column as finite numbers, 0 where there is none; rows that have no number are put into `bad`."""
    numbers, lacking = numbers_or_none(column, bad, name)
    if not may_lack:
        complain(bad, lacking, f"`{name}` is missing")
    return numbers


def plain_numbers(column: pa.ChunkedArray) -> NDArray[np.generic] | None:
    """Return a column of plain numbers, each of which float32 is as near to as to a float64 of it; else None."""
    values = plain(column)
    return np.asarray(values.to_numpy()) if values.type in _PLAIN and not values.null_count else None


def numbers_or_none(
    column: pa.ChunkedArray, bad: dict[int, str], name: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a column as finite numbers, 0 where there is none, and where there is none."""
    values = plain(column)
    lacking = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False))
    if is_text(values.type):
        values = values.cast(pa.binary())
        lacking = lacking | np.asarray(
            pc.equal(pc.binary_length(values), 0).fill_null(True).to_numpy(zero_copy_only=False)
        )
        shaped = pc.fill_null(pc.match_substring_regex(values, NUMBER), False)
        complain(bad, ~np.asarray(shaped.to_numpy(zero_copy_only=False)) & ~lacking, f"`{name}` is not a number")
        values = pc.if_else(shaped, values, pa.scalar(None, pa.binary())).cast(pa.string())
    elif not (
        pa.types.is_integer(values.type)
        or pa.types.is_floating(values.type)
        or pa.types.is_boolean(values.type)
        or pa.types.is_null(values.type)
    ):
        hint = "name it among the slots instead"
        if is_list(values.type):
            hint = (
                f'make it a field of its own, fields=["{name}"], or a slot of several values, multi_valued=["{name}"]'
            )
        if pa.types.is_temporal(values.type):
            hint = f'make something of it: transforms=["hour({name})", "weekday({name})"]'
        raise DataError(f"column `{name}` holds {values.type}, not numbers", hint=hint)
    numbers = np.array(pc.fill_null(values.cast(pa.float64(), safe=False), 0.0).to_numpy(zero_copy_only=False))
    with np.errstate(over="ignore"):
        finite = np.isfinite(numbers.astype(np.float32))
    complain(bad, ~finite, f"`{name}` is not a finite number")
    numbers[~finite] = 0.0
    return numbers, lacking


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
    values = plain(column)
    kind = values.type
    if is_text(kind):
        text = values.cast(pa.string())
        text = pc.if_else(
            pc.equal(pc.binary_length(text), 0), pa.scalar(None, pa.string()), text
        )  # no numbers, not one
        try:
            values = pc.split_pattern(text, separator).cast(pa.list_(pa.int64() if whole else pa.float64()))
        except pa.ArrowInvalid as problem:
            kind = "whole numbers" if whole else "numbers"
            raise DataError(
                f"field `{name}` is not {kind} with `{separator}` between: {problem}",
                hint=f'give its `separator`; or name it among the slots, which take text: slots=["{name}", ...]',
            ) from None
    if not is_list(values.type):
        numbers = numbers_of(column, bad, name, may_lack=False)
        is_whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        return torch.from_numpy(numbers.astype(np.int64 if is_whole else np.float32))
    is_whole = whole or _is_whole(_innermost(values.type), name)
    rows = _lists_of(values, name, np.int64 if is_whole else np.float64)
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
    packed = np.zeros((len(rows), *longest), dtype=np.int64 if is_whole else np.float32)
    for number, row in enumerate(good):
        if row.ndim == dims:
            packed[number][tuple(slice(length) for length in row.shape)] = row
    tensor = torch.from_numpy(packed)
    return tensor.reshape(len(rows), *shape) if shape is not None else tensor


def _innermost(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of lists, or of lists of lists."""
    return _innermost(kind.value_type) if is_list(kind) else kind


def _is_whole(kind: pa.DataType, name: str) -> bool:
    """Say whether the numbers of a field are whole; refuse values that are no numbers."""
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return True
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        return False
    raise DataError(
        f"field `{name}` holds lists of {kind}, and a field is of numbers",
        hint=f"name it among the slots, which take text: slots=[{name!r}, ...], multi_valued=[{name!r}]; or number its "
        "values before",
    )


def _lists_of(values: pa.Array, name: str, kind: type[np.generic]) -> list[NDArray[np.generic]]:
    """Return lists of numbers, or lists of such lists, as an array each; a number that lacks is 0."""
    if is_list(values.type.value_type):
        return [_nested(row, kind) for row in values.to_pylist()]
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    numbers = pc.list_flatten(values)
    try:
        flat = pc.fill_null(numbers.cast(pa.int64() if kind is np.int64 else pa.float64()), 0)
    except pa.ArrowInvalid as problem:
        raise DataError(f"field `{name}`: {problem}", hint="whole numbers are below 2**63") from None
    pieces = np.split(flat.to_numpy(zero_copy_only=False).astype(kind), np.cumsum(lengths))
    return pieces[: len(values)]


def _nested(row: object, kind: type[np.generic]) -> NDArray[np.generic]:
    """Return lists within a list as an array."""
    try:
        return np.asarray(_filled(row or []), dtype=kind)
    except (ValueError, OverflowError):
        raise DataError("a field's lists within lists are of unlike lengths", hint="make them alike") from None


def _filled(value: object) -> object:
    """Return nested lists with 0 for what lacks."""
    return [_filled(each) for each in value] if isinstance(value, list) else 0 if value is None else value


def is_list(kind: pa.DataType) -> bool:
    """Say whether values are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def complain(bad: dict[int, str], wrong: NDArray[np.bool_], reason: str) -> None:
    """Put the rows that are wrong into `bad`, unless something else was wrong with them before."""
    for row in np.flatnonzero(wrong):
        bad.setdefault(int(row), reason)


@dataclass(frozen=True, slots=True, eq=False)
class SlotValues:
    """What a slot has in some rows."""

    values: NDArray[np.signedinteger[Any]]
    """Ids; with a salt int32 or int64 numbers whose ids are not found yet."""
    counts: NDArray[np.int64] | None = None
    """How many each row has; None: one."""
    salt: np.uint64 | None = None

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids."""
        if self.salt is None:
            return self.values.astype(np.int64, copy=False)
        return np.asarray(
            keys_of_whole_numbers(self.values.astype(np.int64), np.zeros(self.values.size, np.bool_), self.salt)
        )


@njit(cache=True, nogil=True)
def side_by_side(
    columns: NDArray[np.int64], widths: NDArray[np.int64], salts: NDArray[np.uint64], rows: NDArray[np.int64]
) -> None:  # pragma: no cover
    """Put columns side by side, given by their addresses; a few rows at a time, which stay near.

    Columns are of ids where their width is 0, else of numbers of so many bytes, whose ids are found on the way.
    """
    digits = np.empty(20, dtype=np.uint64)
    for first in range(0, rows.shape[0], _NEAR):
        last = min(first + _NEAR, rows.shape[0])
        for slot in range(columns.size):
            address, salt = pointer(columns[slot]), salts[slot]
            if widths[slot] == 4:
                narrow = carray(address, (FAR,), np.int32)
                for row in range(first, last):
                    rows[row, slot] = key_of_whole_number(np.int64(narrow[row]), salt, digits)
            elif widths[slot] == 8:
                wide = carray(address, (FAR,), np.int64)
                for row in range(first, last):
                    rows[row, slot] = key_of_whole_number(wide[row], salt, digits)
            else:
                ids = carray(address, (FAR,), np.int64)
                for row in range(first, last):
                    rows[row, slot] = ids[row]


def interleave(slots: Sequence[SlotValues], num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and offsets sample by sample, from what each slot has."""
    if all(slot.counts is None for slot in slots):
        columns = [np.ascontiguousarray(slot.values) for slot in slots]
        even = np.empty((num_rows, len(slots)), dtype=np.int64)
        side_by_side(
            np.array([column.ctypes.data for column in columns], dtype=np.int64),
            np.array([0 if slot.salt is None else slot.values.itemsize for slot in slots], dtype=np.int64),
            np.array([slot.salt or 0 for slot in slots], dtype=np.uint64),
            even,
        )
        return torch.from_numpy(even.reshape(-1)), even_offsets(even.size + 1, False)
    lengths = np.ones((num_rows, len(slots)), dtype=np.int64)
    for number, slot in enumerate(slots):
        if slot.counts is not None:
            lengths[:, number] = slot.counts
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    ids = np.empty(offsets[-1], dtype=np.int64)
    for number, slot in enumerate(slots):
        begins, counts, own = offsets[:-1].reshape(num_rows, len(slots))[:, number], lengths[:, number], slot.ids
        own_begins = np.cumsum(counts) - counts
        ids[np.repeat(begins - own_begins, counts) + np.arange(own.size)] = own
    return torch.from_numpy(ids), torch.from_numpy(offsets)


def values_of_slot(column: pa.ChunkedArray, name: str, separator: str | None) -> SlotValues:
    """Return what a slot has in each row; a single value that is missing has an id of its own.

    With a `separator` a row has any number of values; a missing or empty one among them is none.
    """
    values = plain(column)
    if separator is None and is_list(values.type):
        raise DataError(
            f"slot `{name}` has one value a row, and holds lists",
            hint=f'name it among those of several: multi_valued=["{name}"]',
        )
    if separator is not None and not is_list(values.type):
        text = pc.fill_null(text_of(values, name).cast(pa.string()), "")
        warn_of_separator(text, name, separator)
        values = pc.split_pattern(text, separator)
    if not is_list(values.type):
        if not pa.types.is_integer(values.type) or values.type == pa.uint64():
            return SlotValues(_keys(pc.fill_null(text_of(values, name), b""), name))
        salt = slot_salt(name)
        numbers = np.asarray(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
        if not values.null_count:
            return SlotValues(numbers if numbers.dtype == np.int32 else numbers.astype(np.int64, copy=False), salt=salt)
        lacking = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False))
        return SlotValues(np.asarray(keys_of_whole_numbers(numbers.astype(np.int64), lacking, salt)))
    counts = np.array(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    text = pc.fill_null(text_of(plain(values.flatten()), name), b"")
    filled = np.asarray(pc.greater(pc.binary_length(text), 0).to_numpy(zero_copy_only=False), dtype=np.bool_)
    if not filled.all():
        row_of = np.repeat(np.arange(counts.size), counts)
        counts = np.bincount(row_of[filled], minlength=counts.size).astype(np.int64)
        text = text.filter(pa.array(filled))
    return SlotValues(_keys(text, name), counts)


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


def text_of(values: pa.Array, name: str) -> pa.Array:
    """Return values of a slot as bytes: text as it is, whole numbers in decimal digits, `true` and `false`.

    Whole numbers may be written as floats, as pandas has those of a column in which some are missing.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = np.array(pc.fill_null(values.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False))
        is_there = ~np.isnan(numbers)
        there = numbers[is_there]
        with np.errstate(invalid="ignore"):
            if not bool(((np.abs(there) < WHOLE_BELOW) & (there == np.trunc(there))).all()):
                raise DataError(
                    f"slot `{name}` holds {kind}, and not whole numbers alone",
                    hint="name it among the numbers (dense), or make slots of it: bucketise",
                )
        numbers[~is_there] = 0.0
        values = pa.array(numbers.astype(np.int64), mask=~is_there).cast(pa.string())
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values = values.cast(pa.string())
    elif not (is_text(kind) or pa.types.is_null(kind)):
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
