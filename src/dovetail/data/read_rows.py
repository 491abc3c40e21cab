"""Raw rows, as dictionaries, to what an exported model takes: model(*tensors(rows)). It needs PyTorch alone.

A row has every column that the model reads, by name, as pandas (`frame.to_dict("records")`), Polars
(`frame.rows(named=True)`), Arrow (`table.to_pylist()`, or scalars) or JSON give it; the first three's tables are taken
as well. None, NaN, NaT and NA are all missing: a missing number is 0, a missing category has an id of its own, a list
may be empty. Lists shorter than others get zeros behind. What cannot be read as it was in training is refused with the
name of its column. `model.json`, beside this file, says what the columns are.
"""

from __future__ import annotations

import calendar
import datetime as dt
import functools
import hashlib
import json
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor

NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_TIME = r"[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
MOMENT = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}({_TIME})?$"
LARGEST = 3.4028235677973366e38
"""The first number that a float32 does not hold: half a step beyond the largest."""
WHOLE_BELOW = float(1 << 53)
"""Floats from here on may have been other whole numbers once."""
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
JOINED_BY = b"\x1f"
"""Between the values of a crossing."""
_WORD = (1 << 64) - 1


def tensors(rows: Any, facts: Mapping[str, Any] | None = None) -> tuple[Tensor, ...]:
    """Return the inputs of the model for some rows; `facts` are those of `model.json` unless others are given.

    `rows` are dictionaries, or a table of pandas, Polars or Arrow.
    """
    facts, rows = _facts() if facts is None else facts, _rows_of(rows)
    schema, columns = facts["schema"], facts["columns"]
    made: dict[str, list[Any]] = {}
    for each in columns.get("transforms", ()):
        made[each["name"]] = _made(each["make"], rows, made, columns)
    numbers = [_numbers(_column(rows, made, name), name)[0] for name in schema["dense"]]
    bags: list[list[list[int]]] = []
    for slot in schema["slots"]:
        key = functools.partial(key_of, slot["name"], slot.get("hash_into"))
        texts = _bags(_column(rows, made, slot["name"]), slot, columns)
        bags.append([[key(text) for text in row] for row in texts])
    in_order = [bag[row] for row in range(len(rows)) for bag in bags]
    tensors_by_name = {
        field["name"]: _field(_column(rows, made, field["name"]), field, columns)
        for field in schema.get("fields", ())
        if field["name"] in facts["inputs"]
    }
    tensors_by_name |= {
        "dense": torch.stack(numbers, dim=1).float() if numbers else torch.zeros(len(rows), 0),
        "ids": torch.tensor([key for bag in in_order for key in bag], dtype=torch.int64),
        "offsets": torch.tensor([0, *(len(bag) for bag in in_order)]).cumsum(0),
    }
    return tuple(tensors_by_name[name] for name in facts["inputs"])


def key_of(slot: str, hash_into: int | None, text: bytes) -> int:
    """Return the id of a value of a slot: FNV-1a from the slot's salt, mixed by SplitMix64, 63 bits."""
    word = int.from_bytes(hashlib.blake2b(f"0/slot/{slot}".encode(), digest_size=8).digest(), "little")
    for byte in text:
        word = (word ^ byte) * 0x100000001B3 & _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return int(((word ^ word >> 31) & (1 << 63) - 1) % (hash_into or 1 << 63))


# -- functions of numbers, which training computes with too ------------------------------------------------------------


def log(numbers: Tensor) -> Tensor:
    """Return the logarithm of 1 + x, and 0 for what is below 0."""
    return torch.log1p(numbers.clamp(min=0.0))


def clip(numbers: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """Return numbers no less than `low` and no more than `high`."""
    return numbers.clamp(min=low, max=high)


def standardise(numbers: Tensor, mean: float, deviation: float) -> Tensor:
    """Return how many deviations numbers are above the mean."""
    return (numbers - mean) / deviation


def bucketise(numbers: Tensor, bounds: Sequence[float]) -> Tensor:
    """Return how many of the bounds each number has reached: 0 below the first of them."""
    return torch.bucketize(numbers, torch.tensor(bounds, dtype=torch.float64), right=True)


def hour(seconds: Tensor) -> Tensor:
    """Return the hour of the day, 0 to 23, of seconds since 1970 (UTC)."""
    return torch.div(seconds, 3600, rounding_mode="floor") % 24


def weekday(seconds: Tensor) -> Tensor:
    """Return the day of the week, 0 (Monday) to 6, of seconds since 1970 (UTC)."""
    return (torch.div(seconds, 86400, rounding_mode="floor") + 3) % 7


OF_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "log": log,
    "clip": clip,
    "standardise": standardise,
    "bucketise": bucketise,
}
OF_MOMENTS: dict[str, Callable[[Tensor], Tensor]] = {"hour": hour, "weekday": weekday}


def seconds_of(moment: Any, unit: str | None) -> int:
    """Return a moment as whole seconds since 1970: a date with or without its time, ISO text, or a number of units.

    What says no zone is UTC. Raises ValueError for anything else.
    """
    if isinstance(moment, bytes):
        moment = moment.decode()
    if isinstance(moment, str):
        if not re.fullmatch(MOMENT, moment):
            raise ValueError(f"is {moment!r}, no date such as 2024-01-31 13:05:00")
        whole, _, fraction = moment.partition(".")
        moment = dt.datetime.fromisoformat(whole + fraction.lstrip("0123456789"))
    if isinstance(moment, int | float) and not isinstance(moment, bool):
        if unit is None:
            raise ValueError(f"is the number {moment!r}, and nobody says of what unit since 1970")
        return math.floor(moment / PER_SECOND[unit]) if isinstance(moment, float) else moment // PER_SECOND[unit]
    if isinstance(moment, dt.datetime):
        return calendar.timegm(moment.utctimetuple())
    if isinstance(moment, dt.date):
        return calendar.timegm(moment.timetuple())
    raise ValueError(f"is {moment!r}, no moment")


# -- values as they come -----------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value of pandas, NumPy, Polars, Arrow or JSON as Python's own; None where it is missing."""
    if callable(getattr(value, "as_py", None)):  # Arrow's scalars
        value = value.as_py()
    if type(value).__name__ == "datetime64":
        value = value.astype("datetime64[us]").tolist()  # those of nanoseconds would become numbers
    elif callable(getattr(value, "tolist", None)):  # scalars and arrays of NumPy, PyTorch and pandas
        value = value.tolist()
    elif callable(getattr(value, "to_list", None)):  # Polars' series
        value = value.to_list()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    return None if isinstance(value, float | Decimal) and value != value else value  # noqa: PLR0124 - NaN


@functools.cache
def _facts() -> dict[str, Any]:
    """Return what lies beside this file."""
    facts: dict[str, Any] = json.loads((pathlib.Path(__file__).parent / "model.json").read_text(encoding="utf-8"))
    return facts


def _rows_of(rows: Any) -> Sequence[Mapping[str, Any]]:
    """Return rows as dictionaries: those of a table of Arrow, Polars or pandas too."""
    if callable(getattr(rows, "to_pylist", None)):
        return list(rows.to_pylist())
    if callable(getattr(rows, "to_dicts", None)):
        return list(rows.to_dicts())
    if callable(getattr(rows, "to_dict", None)) and hasattr(rows, "columns"):
        return list(rows.to_dict("records"))
    if isinstance(rows, Mapping):
        raise ValueError("is one row: give a list of rows, [row]")
    return list(rows)


def _column(rows: Sequence[Mapping[str, Any]], made: Mapping[str, list[Any]], name: str) -> list[Any]:
    """Return a column: one that was made, or the rows' own."""
    if name in made:
        return made[name]
    for number, row in enumerate(rows):
        if name not in row:
            raise ValueError(f"row {number} has no column `{name}`: give None where there is no value")
    return [plain(row[name]) for row in rows]


def _numbers(values: list[Any], name: str) -> tuple[Tensor, Tensor]:
    """Return numbers (float64, 0 where there is none), and where there is none."""
    numbers = []
    for row, value in enumerate(values):
        try:
            numbers.append(_number(value))
        except (ValueError, OverflowError) as problem:
            raise ValueError(f"row {row}: `{name}` {problem}") from None
    missing = [number is None for number in numbers]
    filled = [0.0 if number is None else number for number in numbers]
    return torch.tensor(filled, dtype=torch.float64), torch.tensor(missing, dtype=torch.bool)


def _number(value: Any) -> float | None:
    """Return a number; None where there is none."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if value is None or value == "":
        return None
    if isinstance(value, str) and not re.fullmatch(NUMBER, value):
        raise ValueError(f"is {value!r}, not a number")
    if not isinstance(value, str | int | float | Decimal):
        raise ValueError(f"is {value!r}, not a number")
    number = float(value)
    if not abs(number) < LARGEST:
        raise ValueError(f"is {value!r}, not a finite number")
    return number


def _bags(values: list[Any], slot: Mapping[str, Any], columns: Mapping[str, Any]) -> list[list[bytes]]:
    """Return the values of a slot as bytes, row by row."""
    found = []
    for row, value in enumerate(values):
        try:
            if slot["multi_valued"]:
                found.append(_several(value, columns))
            else:
                found.append([_text(value, columns)])
        except ValueError as problem:
            raise ValueError(f"row {row}: `{slot['name']}` {problem}") from None
    return found


def _several(value: Any, columns: Mapping[str, Any]) -> list[bytes]:
    """Return the values of one row of a multi-valued slot; missing and empty ones are none."""
    if isinstance(value, list):
        texts = [_text(each, columns) for each in value]
    else:
        texts = _text(value, columns).split(columns["separator"].encode())
    return [text for text in texts if text]


def _text(value: Any, columns: Mapping[str, Any]) -> bytes:
    """Return a category as the bytes that are hashed."""
    if value is None:
        return b""
    if isinstance(value, bool):
        if columns.get("is_text"):
            raise ValueError(f"is {value!r}, and was text in training: give it as the files had it")
        return b"true" if value else b"false"
    if isinstance(value, float | Decimal):
        if not (abs(float(value)) < WHOLE_BELOW and value == int(value)):
            raise ValueError(f"is {value!r}, and categories are text or whole numbers")
        value = int(value)
    if isinstance(value, int):
        return str(value).encode()
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    raise ValueError(f"is {value!r}, and categories are text or whole numbers")


# -- sequences, images, any tensor -------------------------------------------------------------------------------------


def _field(values: list[Any], field: Mapping[str, Any], columns: Mapping[str, Any]) -> Tensor:
    """Return a further field of all rows: a number each, or lists, which get zeros behind up to the longest."""
    shape, found = field["shape"], []
    for row, value in enumerate(values):
        try:
            found.append(_array(value, field, columns))
        except (ValueError, OverflowError) as problem:
            raise ValueError(f"row {row}: `{field['name']}` {problem}") from None
    sizes = [max((each.shape[d] for each in found), default=0) for d in range(len(shape))]
    at_least = [field.get("length") or 0 if size is None else size for size in shape]
    whole = torch.zeros(len(found), *map(max, sizes, at_least), dtype=_kind(field))
    for place, each in enumerate(found):
        whole[place][tuple(slice(size) for size in each.shape)] = each
    return whole


def _array(value: Any, field: Mapping[str, Any], columns: Mapping[str, Any]) -> Tensor:
    """Return a row's value of a field as a tensor of the field's dimensions."""
    shape, length = field["shape"], field.get("length")
    if not shape:
        if value is None:
            raise ValueError("is missing")
        return torch.tensor(_leaf(value, field), dtype=_kind(field))
    if isinstance(value, str | bytes):
        text = value.decode() if isinstance(value, bytes) else value
        value = text.split(columns["separator"]) if text else []
    if value is not None and not isinstance(value, list):
        raise ValueError(f"is {value!r}, not a list")
    found = torch.tensor(_leaves(value or [], field), dtype=_kind(field))
    if None not in shape:
        if found.numel() != math.prod(shape):
            raise ValueError(f"has {found.numel()} numbers, not {' x '.join(map(str, shape))}")
        return found.reshape(shape)
    if not found.numel():
        return found.reshape([0] * len(shape))
    if found.dim() != len(shape):
        raise ValueError(f"has {found.dim()} dimensions, and had {len(shape)} in training")
    if length is not None and found.shape[0] > length:
        raise ValueError(f"has {found.shape[0]} values, and the program takes {length}: cut it as training would")
    return found


def _leaves(value: Any, field: Mapping[str, Any]) -> Any:
    """Return nested lists of numbers; what is missing is 0."""
    return [_leaves(each, field) for each in value] if isinstance(value, list) else _leaf(value, field)


def _leaf(value: Any, field: Mapping[str, Any]) -> float | int:
    """Return a number of a field."""
    if field["dtype"] != "int64":
        return _number(value) or 0.0
    if isinstance(value, int):
        return int(value)
    number = _number(value) or 0.0
    if number != int(number) or abs(number) >= WHOLE_BELOW:
        raise ValueError(f"is {value!r}, and was a whole number in training")
    return int(number)


def _kind(field: Mapping[str, Any]) -> torch.dtype:
    """Return the type of a field's numbers."""
    return torch.int64 if field["dtype"] == "int64" else torch.float32


# -- columns that are made of others -----------------------------------------------------------------------------------


def _made(
    make: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    made: Mapping[str, list[Any]],
    columns: Mapping[str, Any],
) -> list[Any]:
    """Return the column that a transform makes; what is missing stays missing."""
    if "column" in make:
        return _column(rows, made, make["column"])
    function, settings, name = make["function"], make.get("settings", {}), _name(make)
    inputs = [_made(each, rows, made, columns) for each in make["of"]]
    if function == "cross":
        named = zip(inputs, map(_name, make["of"]), strict=True)
        sides = [[_one(value, side_name, columns) for value in side] for side, side_name in named]
        return [JOINED_BY.join(pair) for pair in zip(*sides, strict=True)]
    if function in OF_MOMENTS:
        numbers, missing = _moments(inputs[0], settings.get("unit"), name)
        found = OF_MOMENTS[function](numbers)
    else:
        numbers, missing = _numbers(inputs[0], name)
        found = OF_NUMBERS[function](numbers, **settings)
    return [None if lacks else value for value, lacks in zip(found.tolist(), missing.tolist(), strict=True)]


def _name(make: Mapping[str, Any]) -> str:
    """Return the first column that goes into a transform, by which errors call it."""
    return str(make["column"]) if "column" in make else _name(make["of"][0])


def _one(value: Any, name: str, columns: Mapping[str, Any]) -> bytes:
    """Return a side of a crossing as bytes."""
    try:
        return _text(value, columns)
    except ValueError as problem:
        raise ValueError(f"`{name}` {problem}") from None


def _moments(values: list[Any], unit: str | None, name: str) -> tuple[Tensor, Tensor]:
    """Return moments as whole seconds since 1970, 0 where there is none, and where there is none."""
    missing = [value is None or value == "" for value in values]
    seconds = []
    for row, (value, lacks) in enumerate(zip(values, missing, strict=True)):
        try:
            seconds.append(0 if lacks else seconds_of(value, unit))
        except ValueError as problem:
            raise ValueError(f"row {row}: `{name}` {problem}") from None
    return torch.tensor(seconds, dtype=torch.int64), torch.tensor(missing, dtype=torch.bool)
