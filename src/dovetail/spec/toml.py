"""Writing TOML so that users can go on writing below it: every table of a list is a `[[resource]]` of its own.

Python reads TOML but does not write it, and tomli-w puts short tables into one `resource = [{...}]`, to which TOML lets
nobody add a `[[resource]]`; of a curve it writes a line a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a table of plain values as TOML: scalars first, then tables, then arrays of tables."""
    return "\n".join(_lines(table, prefix=())).strip() + "\n"


def _lines(table: Mapping[str, Any], *, prefix: tuple[str, ...]) -> list[str]:
    """Return the lines of one table and all tables below it."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not _is_nested(value)]
    for key, value in table.items():
        path = (*prefix, key)
        header = ".".join(_key(part) for part in path)
        if isinstance(value, Mapping):
            below = _lines(value, prefix=path)
            has_own_keys = any(not _is_nested(inner) for inner in value.values()) or not value
            lines += ["", f"[{header}]", *below] if has_own_keys else below
        elif _is_nested(value):
            for entry in value:
                lines += ["", f"[[{header}]]", *_lines(entry, prefix=path)]
    return lines


def _is_nested(value: Any) -> bool:
    """Say whether a value is written as tables of its own."""
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)
    )


def _key(key: str) -> str:
    """Return a key, in quotes where it needs them."""
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _value(value: Any) -> str:
    """Return a scalar or a list of scalars."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(entry) for entry in value) + "]"
    return repr(value)
