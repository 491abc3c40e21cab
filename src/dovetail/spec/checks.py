"""How a described number is checked: once, where the value is made, whoever makes it."""

from __future__ import annotations

import functools
import json
import math
from typing import Any, get_type_hints

import msgspec

from dovetail.errors import SpecError

TOO_LARGE = "too large to compute with"
"""What is said of a number that no float can hold."""


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
    return (
        f"`{file_key(kind, name)}` is {description}" if description else "docs/reference lists the keys of every file"
    )


def file_key(kind: type, name: str) -> str:
    """Return the key that stands for a field in a file: `from` for `source`, most often the name itself."""
    keys: dict[str, str] = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))  # type: ignore[attr-defined]
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_finite = is_number and _is_finite(value)
    if (
        is_finite
        and (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
    ):
        return
    if is_number and not is_finite and isinstance(value, int):
        raise _refusal(owner, name, f"is {show(value)}, {TOO_LARGE}")
    expected = "a number" if is_finite or not is_number else "a finite number"
    if above is not None:
        expected += " above zero" if above == 0 else f" above {above:g}"
    elif at_least is not None and at_most is not None:
        expected += f" from {at_least:g} to {at_most:g}"
    elif at_least is not None:
        expected += f" of at least {at_least:g}"
    shown = (
        show(int(value)) if is_finite and value == int(value) else show(value)
    )  # -2 in the file is -2.0 in the field
    raise _refusal(owner, name, f"is {shown}, expected {expected}")


def check_whole_number(owner: msgspec.Struct, name: str, *, at_least: int) -> None:
    """Refuse a field of `owner` that is not a whole number of at least `at_least`."""
    value: Any = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise _refusal(owner, name, f"is {show(value)}, expected a whole number of at least {at_least}")
    if not _is_finite(value):
        raise _refusal(owner, name, f"is {show(value)}, {TOO_LARGE}")


def check_name(owner: msgspec.Struct, name: str = "name") -> None:
    """Refuse a name that nobody could refer to."""
    value: Any = getattr(owner, name)
    if not isinstance(value, str) or not value.strip():
        raise _refusal(owner, name, f"is {show(value)}, expected a name")


def show(value: Any) -> str:
    """Return a value as the file would have it, cut short where it is long."""
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 60 else f"{value[:57]}...", ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and not _is_finite(value):
        return f"a whole number of {int(value.bit_length() * math.log10(2)) + 1} digits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refusal(owner: msgspec.Struct, name: str, complaint: str) -> SpecError:
    """Return the complaint about a field of `owner`, with its key and what belongs there."""
    return SpecError(complaint, key=file_key(type(owner), name), hint=field_hint(type(owner), name))


def _is_finite(value: int | float) -> bool:
    """Say whether a number is finite as a float; a whole number may be too large for one."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
