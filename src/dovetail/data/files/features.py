"""Features that are made of columns, as a run file writes them down.

    price = standardise(log(price))        numbers: log, clip(x, low, high), standardise
    age = bucketise(age, 18, 25, 35, 50)   categories: bucketise, hour, weekday, cross
    hour(time)                             without a name: `time_hour`; functions of one number replace their column
    cross(user, time_hour)                 `user_x_time_hour`; a later one may use what an earlier one made

A name that is no word stands in quotes: log("unit price"). What is missing stays missing: in the end 0 for a number, an
id of its own for a category. `standardise` takes its mean and deviation from a first pass over the data; they are
written down as `standardise(price, mean=3.5, deviation=1.25)`, which holds from then on. Moments are UTC.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from dovetail.data.errors import DataError
from dovetail.data.files.values import complain, is_list, is_text, numbers_or_none, plain, text_of
from dovetail.data.read_rows import JOINED_BY, OF_MOMENTS, OF_NUMBERS, PER_SECOND, seconds_of
from dovetail.errors import did_you_mean

FUNCTIONS = (*OF_NUMBERS, *OF_MOMENTS, "cross")
CATEGORIES = ("bucketise", *OF_MOMENTS, "cross")
"""Functions whose values are categories; those of others are numbers."""
SETTINGS = {
    "log": (),
    "clip": ("low", "high"),
    "standardise": ("mean", "deviation"),
    "bucketise": ("bounds",),
    "hour": ("unit",),
    "weekday": ("unit",),
    "cross": (),
}
"""What a function can be told beside its columns."""


@dataclass(frozen=True, slots=True)
class ColumnOf:
    """A column, by its name."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Return it as the exported reader takes it."""
        return {"column": self.name}

    def __str__(self) -> str:
        """Return it as it is written."""
        is_word = self.name.isidentifier() and self.name.isascii()
        return self.name if is_word else ast.unparse(ast.Constant(self.name))


@dataclass(frozen=True, slots=True)
class Call:
    """A function of one or two columns, or of what other functions make of them."""

    function: str
    of: tuple[Made, ...]
    settings: tuple[tuple[str, Any], ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return it as the exported reader takes it."""
        return {
            "function": self.function,
            "of": [each.facts() for each in self.of],
            "settings": {name: list(value) if isinstance(value, tuple) else value for name, value in self.settings},
        }

    def __str__(self) -> str:
        """Return it as it is written."""
        words = [str(each) for each in self.of]
        for name, value in self.settings:
            words += [repr(each) for each in value] if name == "bounds" else [f"{name}={value!r}"]
        return f"{self.function}({', '.join(words)})"

    @property
    def is_settled(self) -> bool:
        """Whether everything is known that it computes with."""
        return (self.function != "standardise" or bool(self.settings)) and all(_is_known(each) for each in self.of)


Made = ColumnOf | Call


@dataclass(frozen=True, slots=True)
class Feature:
    """A column under its name, and what it is made of."""

    name: str
    call: Call

    @property
    def is_category(self) -> bool:
        """Whether its values are categories, not numbers."""
        return self.call.function in CATEGORIES

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it is made of."""
        return tuple(_columns_in(self.call))

    def facts(self) -> dict[str, Any]:
        """Return it as the exported reader takes it."""
        return {"name": self.name, "make": self.call.facts()}

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{ColumnOf(self.name)} = {self.call}"


def parse_features(texts: str | Iterable[str]) -> tuple[Feature, ...]:
    """Return the features that a list of texts describes, in order."""
    return tuple(parse_feature(text) for text in ([texts] if isinstance(texts, str) else texts))


def parse_feature(text: object) -> Feature:
    """Return the feature that a text such as `price = log(price)` describes."""
    if not isinstance(text, str):
        raise DataError(f"a transform is {text!r}", hint='write it as text, e.g. "price = log(price)"')
    name, call_text = _split(text)
    try:
        call = _parsed(ast.parse(call_text.strip(), mode="eval").body, text)
    except SyntaxError:
        raise DataError(f"the transform `{text}` cannot be read", hint="write it like: price = log(price)") from None
    if not isinstance(call, Call):
        raise DataError(f"the transform `{text}` makes nothing", hint="write it like: price = log(price)")
    return Feature(name if name is not None else _own_name(call), call)


def _split(text: str) -> tuple[str | None, str]:
    """Return the name before the first `=` outside of brackets and quotes, and what stands behind it."""
    if "=" in text:
        left, right = text.split("=", 1)
        if "(" not in left or left.strip()[:1] in ("'", '"'):
            name = left.strip()
            if name[:1] in ("'", '"'):
                try:
                    name = ast.literal_eval(name)
                except (SyntaxError, ValueError):
                    raise DataError(f"the transform `{text}` cannot be read", hint="is a quote left open?") from None
            if not name:
                raise DataError(f"the transform `{text}` has no name", hint="write it like: price = log(price)")
            return name, right
    return None, text


def _own_name(call: Call) -> str:
    """Return what a feature is called that nobody named."""
    sides = [each.name if isinstance(each, ColumnOf) else _own_name(each) for each in call.of]
    if call.function == "cross":
        return "_x_".join(sides)
    return f"{sides[0]}_{call.function}" if call.function in OF_MOMENTS else sides[0]


def _parsed(node: ast.expr, text: str) -> Made:
    """Return what a piece of a transform's text means."""
    if isinstance(node, ast.Name):
        return ColumnOf(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ColumnOf(node.value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise DataError(
            f"the transform `{text}` has `{ast.unparse(node)}` in the place of a column",
            hint="names that are no words stand in quotes; functions are " + ", ".join(FUNCTIONS),
        )
    function = node.func.id
    if function not in FUNCTIONS:
        raise DataError(f"the transform `{text}`: there is no `{function}`", hint=did_you_mean(function, FUNCTIONS))
    wanted = 2 if function == "cross" else 1
    if len(node.args) < wanted:
        raise DataError(
            f"the transform `{text}`: `{function}` is of {wanted} column{'s' * (wanted > 1)}",
            hint="cross(user, item)" if wanted > 1 else f"{function}(column)",
        )
    of = tuple(_parsed(each, text) for each in node.args[:wanted])
    return Call(function, of, tuple(_settings(function, node, wanted, text).items()))


def _settings(function: str, node: ast.Call, wanted: int, text: str) -> dict[str, Any]:
    """Return what a function is told beside its columns, checked."""
    try:
        values = [ast.literal_eval(each) for each in node.args[wanted:]]
        named = {each.arg or "**": ast.literal_eval(each.value) for each in node.keywords}
    except ValueError:
        raise DataError(f"the transform `{text}`: settings are numbers or text", hint="e.g. clip(x, 0, 10)") from None
    known = SETTINGS[function]
    for name in named:
        if name not in known:
            raise DataError(f"the transform `{text}`: `{function}` has no `{name}`", hint=did_you_mean(name, known))
    if function == "bucketise":
        bounds = named.get("bounds", values)
        bounds = bounds[0] if len(bounds) == 1 and isinstance(bounds[0], list | tuple) else bounds
        return {"bounds": _bounds(bounds, text)}
    if len(values) > len(known):
        raise DataError(
            f"the transform `{text}`: `{function}` is told {len(values)} things, and takes {len(known)}",
            hint=f"those are: {', '.join(known) or 'none'}",
        )
    settings = dict(zip(known, values, strict=False)) | named
    _check(function, settings, text)
    return {name: settings[name] for name in known if settings.get(name) is not None}


def _bounds(values: Any, text: str) -> tuple[float, ...]:
    """Return bounds that go up."""
    if not values or not all(_is_number(each) for each in values) or sorted(set(values)) != list(values):
        raise DataError(
            f"the transform `{text}`: the bounds are {values!r}",
            hint="give numbers that go up, e.g. bucketise(age, 18, 25, 35)",
        )
    return tuple(values)


def _check(function: str, settings: Mapping[str, Any], text: str) -> None:
    """Refuse settings that cannot be."""
    numbers = {name: value for name, value in settings.items() if name != "unit" and value is not None}
    if not all(_is_number(value) for value in numbers.values()):
        raise DataError(f"the transform `{text}`: {numbers} are no numbers", hint="give finite numbers")
    if function == "clip" and (not numbers or settings.get("low", -math.inf) > settings.get("high", math.inf)):
        raise DataError(f"the transform `{text}` clips nothing", hint="clip(x, low, high), or low= or high= alone")
    if function == "standardise" and len(numbers) == 1:
        raise DataError(
            f"the transform `{text}` has a mean or a deviation alone", hint="give both, or none: the data tell"
        )
    if function == "standardise" and numbers and numbers["deviation"] <= 0:
        raise DataError(f"the transform `{text}`: the deviation is not above 0", hint="give one above 0")
    if settings.get("unit") is not None and settings["unit"] not in PER_SECOND:
        raise DataError(
            f"the transform `{text}`: the unit is {settings['unit']!r}", hint=f"units are: {', '.join(PER_SECOND)}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_known(made: Made) -> bool:
    """Say whether something is a column, or settled."""
    return isinstance(made, ColumnOf) or made.is_settled


def _columns_in(made: Made) -> Iterator[str]:
    """Yield the columns that something is made of."""
    if isinstance(made, ColumnOf):
        yield made.name
        return
    for each in made.of:
        yield from _columns_in(each)


def columns_read(features: Sequence[Feature]) -> tuple[str, ...]:
    """Return the columns that features are made of and that none of those before makes, each once."""
    made: set[str] = set()
    found: dict[str, None] = {}
    for feature in features:
        found |= dict.fromkeys(name for name in feature.reads if name not in made)
        made.add(feature.name)
    return tuple(found)


# -- computed from a table ---------------------------------------------------------------------------------------------


def with_features(table: pa.Table, features: Sequence[Feature], bad: dict[int, str]) -> pa.Table:
    """Return a table with the features as columns; rows of which one cannot be made are put into `bad`."""
    for feature in features:
        values = _computed(feature.call, table, bad)
        place = table.schema.get_field_index(feature.name)
        if place >= 0:
            table = table.set_column(place, feature.name, values)
        else:
            table = table.append_column(feature.name, values)
    return table


def _computed(made: Made, table: pa.Table, bad: dict[int, str]) -> pa.Array:
    """Return the values of a column, or of what is made of some."""
    if isinstance(made, ColumnOf):
        return plain(table[made.name])
    name = next(_columns_in(made))
    inputs = [_computed(each, table, bad) for each in made.of]
    for side, each in zip(inputs, made.of, strict=True):
        if is_list(side.type):
            raise DataError(
                f"`{made.function}` is of single values, and column `{next(_columns_in(each))}` holds lists",
                hint="leave it as a multi-valued slot",
            )
    if made.function == "cross":
        sides = [
            pc.fill_null(text_of(side, next(_columns_in(each))), b"")
            for side, each in zip(inputs, made.of, strict=True)
        ]
        return pc.binary_join_element_wise(*sides, JOINED_BY)
    if made.function in OF_MOMENTS:
        seconds, lacking = _seconds(inputs[0], dict(made.settings).get("unit"), name, bad)
        found = OF_MOMENTS[made.function](torch.from_numpy(seconds))
    else:
        numbers, lacking = numbers_or_none(inputs[0], bad, name)
        found = OF_NUMBERS[made.function](torch.from_numpy(numbers), **dict(made.settings))
    return pa.array(found.numpy(), mask=lacking)


def _seconds(
    values: pa.Array, unit: str | None, name: str, bad: dict[int, str]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return moments as whole seconds since 1970, 0 where there is none, and where there is none."""
    kind = values.type
    lacking = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False))
    if pa.types.is_date32(kind):
        return _whole(values.cast(pa.int32())) * 86_400, lacking
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        per_second = PER_SECOND[kind.unit] if pa.types.is_timestamp(kind) else PER_SECOND["ms"]
        return _whole(values.cast(pa.int64())) // per_second, lacking
    if pa.types.is_integer(kind) and unit is not None:
        return _whole(values) // PER_SECOND[unit], lacking
    if not is_text(kind):
        raise DataError(
            f"column `{name}` holds {kind}, not moments",
            hint='for numbers since 1970 say of what: hour(time, unit="s"), or "ms", "us", "ns"',
        )
    seconds = np.zeros(len(values), dtype=np.int64)
    wrong = np.zeros(len(values), dtype=np.bool_)
    for row, text in enumerate(values.to_pylist()):
        if not text:
            lacking[row] = True
            continue
        try:
            seconds[row] = seconds_of(text, None)
        except ValueError:
            wrong[row] = True
    complain(bad, wrong, f"`{name}` is no date such as 2024-01-31 13:05:00")
    return seconds, lacking


def _whole(values: pa.Array) -> NDArray[np.int64]:
    """Return whole numbers, 0 where there is none."""
    return np.array(pc.fill_null(values, 0).to_numpy(zero_copy_only=False), dtype=np.int64)


# -- what standardise needs to know ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Moments:
    """The mean of numbers and the sum of their squared distances from it, numbers added in any portions."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Take in some numbers."""
        if not numbers.size:
            return
        mean = float(numbers.mean())
        squares = float(((numbers - mean) ** 2).sum())
        total, apart = self.count + numbers.size, mean - self.mean
        self.mean += apart * numbers.size / total
        self.squares += squares + apart * apart * self.count * numbers.size / total
        self.count = total

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 where all numbers are the same, which leaves 0 of each."""
        found = math.sqrt(self.squares / self.count) if self.count else 0.0
        return found if found > 1e-12 * max(1.0, abs(self.mean)) else 1.0


def settled_features(
    features: Sequence[Feature], tables: Callable[[tuple[str, ...]], Iterable[pa.Table]]
) -> tuple[Feature, ...]:
    """Return features with the means and deviations they lack, from passes over tables of the columns asked for.

    One pass does, unless what is standardised is made of what is.
    """
    whole = list(features)
    while not all(feature.call.is_settled for feature in whole):
        open_names: set[str] = set()
        wanted: list[tuple[int, Call]] = []
        for place, feature in enumerate(whole):
            if not set(feature.reads) & open_names:
                wanted += [(place, call) for call in _open(feature.call)]
            if not feature.call.is_settled:
                open_names.add(feature.name)
        found = [Moments() for _ in wanted]
        for table in tables(columns_read(features)):
            for (place, call), moments in zip(wanted, found, strict=True):
                bad: dict[int, str] = {}
                before = [each for each in whole[:place] if each.call.is_settled]
                values = _computed(call.of[0], with_features(table, before, bad), bad)
                numbers, lacking = numbers_or_none(values, bad, next(_columns_in(call)))
                lacking[list(bad)] = True
                moments.add(numbers[~lacking])
        for (place, call), moments in zip(wanted, found, strict=True):
            if not moments.count:
                raise DataError(
                    f"column `{next(_columns_in(call))}` holds no number to take a mean of",
                    hint="leave its standardise out",
                )
            known = replace(call, settings=(("mean", moments.mean), ("deviation", moments.deviation)))
            whole[place] = replace(whole[place], call=_with(whole[place].call, call, known))
    return tuple(whole)


def _open(made: Made) -> Iterator[Call]:
    """Yield calls of standardise that lack their settings and whose own inputs are settled."""
    if isinstance(made, ColumnOf):
        return
    for each in made.of:
        yield from _open(each)
    if made.function == "standardise" and not made.settings and all(_is_known(each) for each in made.of):
        yield made


def _with(whole: Call, call: Call, known: Call) -> Call:
    """Return a call with one of those in it replaced."""
    if whole == call:
        return known
    return replace(
        whole, of=tuple(each if isinstance(each, ColumnOf) else _with(each, call, known) for each in whole.of)
    )
