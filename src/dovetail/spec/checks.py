"""How a described number is checked: once, where the value is made, whoever makes it."""

from __future__ import annotations

import functools
import math
from typing import Any, get_type_hints

import msgspec

from dovetail.errors import SpecError


@functools.cache
def field_descriptions(kind: type) -> dict[str, str]:
    """Return what each annotated field of a struct means; errors and the reference page use the same words."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: meta.description
        for name, hint in hints.items()
        for meta in getattr(hint, "__metadata__", ())
        if isinstance(meta, msgspec.Meta) and meta.description
    }


def field_hint(kind: type, name: str) -> str:
    """Return the hint for a field of a struct: what belongs there."""
    description = field_descriptions(kind).get(name)
    return f"`{file_key(kind, name)}` is {description}" if description else "docs/reference/problem-file.md lists the keys"


def file_key(kind: type, name: str) -> str:
    """Return the key that stands for a field in a file: `from` for `source`, most often the name itself."""
    keys = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))  # type: ignore[attr-defined]
    return keys.get(name, name)


def check_number(
    owner: msgspec.Struct,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse a field of `owner` that is not a finite number within the given bounds."""
    value: Any = getattr(owner, name)
    expected = "a finite number"
    if above is not None:
        expected = "a number above zero" if above == 0 else f"a number above {above:g}"
    elif at_least is not None and at_most is not None:
        expected = f"a number from {at_least:g} to {at_most:g}"
    elif at_least is not None:
        expected = f"a number of at least {at_least:g}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        is_number
        and _is_finite(value)
        and (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
    ):
        return
    raise SpecError(f"is {show(value)}, expected {expected}", key=file_key(type(owner), name), hint=field_hint(type(owner), name))


def check_whole_number(owner: msgspec.Struct, name: str, *, at_least: int) -> None:
    """Refuse a field of `owner` that is not a whole number of at least `at_least`."""
    value: Any = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least or not _is_finite(value):
        raise SpecError(
            f"is {show(value)}, expected a whole number of at least {at_least}",
            key=file_key(type(owner), name),
            hint=field_hint(type(owner), name),
        )


def check_name(owner: msgspec.Struct, name: str = "name") -> None:
    """Refuse a name that nobody could refer to."""
    value: Any = getattr(owner, name)
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"is {show(value)}, expected a name", key=file_key(type(owner), name), hint=field_hint(type(owner), name))


def show(value: Any) -> str:
    """Return a value as the file would have it, cut short where it is long."""
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_finite(value: int | float) -> bool:
    """Say whether a number is finite as a float; a whole number may be too large for one."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
