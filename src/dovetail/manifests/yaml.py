"""YAML as far as manifests need it: mappings, lists, numbers and text, in the order they are given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = re.compile(r"(?i)true|false|yes|no|on|off|y|n|null")
"""What readers take for something else than text."""
_LINES = re.compile(r"(?=\S)[^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff\t]*\n")
"""Text that can stand as it is, below `|`."""


def yaml_of(value: Mapping[str, Any]) -> str:
    """Return a document."""
    return "\n".join(_mapping(value)) + "\n"


def documents(*values: Mapping[str, Any]) -> str:
    """Return several documents in one file."""
    return "---\n".join(map(yaml_of, values))


def _mapping(value: Mapping[str, Any]) -> Iterator[str]:
    for key, inner in value.items():
        yield from _entry(f"{_scalar(key)}:", inner)


def _entry(before: str, value: Any) -> Iterator[str]:
    """Yield the lines of one value, the first of them after `before`."""
    if isinstance(value, Mapping) and value:
        yield before
        yield from map(_deeper, _mapping(value))
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        yield before
        for inner in value:
            yield from map(_deeper, _item(inner))
    elif isinstance(value, str) and value.count("\n") and _is_block(value):
        yield f"{before} |" + ("" if value.endswith("\n") else "-")
        yield from map(_deeper, value.removesuffix("\n").split("\n"))
    else:
        yield f"{before} {_scalar(value)}"


def _item(value: Any) -> Iterator[str]:
    """Yield the lines of a list's entry: a mapping begins on the line of the dash."""
    if isinstance(value, Mapping) and value:
        first, *rest = _mapping(value)
        yield f"- {first}"
        yield from map(_deeper, rest)
    else:
        yield from _entry("-", value)


def _deeper(line: str) -> str:
    return f"  {line}" if line else line


def _is_block(text: str) -> bool:
    """Say whether text can stand below `|` and be read back to the letter."""
    body = text.removesuffix("\n") + "\n"
    return _LINES.fullmatch(body) is not None and not body.endswith("\n\n")


def _scalar(value: Any) -> str:
    """Return a value on one line; text that could be read as anything else stands in quotes."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value) else _quoted(value)
    if isinstance(value, Mapping | Sequence):
        return "{}" if isinstance(value, Mapping) else "[]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    """Return text in double quotes, what cannot be printed by its number."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == " " else _by_number(ord(each)) for each in quoted)


def _by_number(code: int) -> str:
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
