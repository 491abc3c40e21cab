"""Problem and plan files: TOML or JSON in, values out, and errors that name the file and the key."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.checks import field_hint, show
from dovetail.spec.plan import Plan
from dovetail.spec.problem import Problem

T = TypeVar("T", bound=msgspec.Struct)

_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[(\.\.\.)\]")
_EXPECTED = {
    "float": "a number",
    "int": "a whole number",
    "str": "text in quotes",
    "array": "a list",
    "object": "a table",
    "bool": "true or false",
    "null": "nothing",
}


def read_problem(path: Path) -> Problem:
    """Return the problem in a TOML or JSON file."""
    return read_struct(path, Problem)


def read_plan(path: Path) -> Plan:
    """Return the plan in a JSON or TOML file, such as `dovetail plan --out` writes."""
    return read_struct(path, Plan)


def read_struct(path: Path, kind: type[T]) -> T:
    """Return a file's content as one of our values, or say which key is wrong and how."""
    raw = read_table(path)
    try:
        return _to_struct(raw, kind)
    except SpecError as error:
        raise error.in_file(str(path)) from None


def read_table(path: Path) -> dict[str, Any]:
    """Return the table a TOML or JSON file holds, as plain values."""
    text = _read_text(path)
    is_json = path.suffix == ".json" or (path.suffix != ".toml" and text.lstrip().startswith("{"))
    raw = _parse_json(text, str(path)) if is_json else _parse_toml(text, str(path))
    if not isinstance(raw, dict):
        raise SpecError(
            f"holds {show(raw)}, expected one object", hint="the outermost thing is an object: {...}", file=str(path)
        )
    return raw


def _read_text(path: Path) -> str:
    """Return what a file says, or say why it cannot be read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        near = [other.name for other in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near) if near else "give the path of a TOML or JSON file"
        raise SpecError("no such file", hint=hint, file=str(path)) from None
    except IsADirectoryError:
        raise SpecError("is a folder", hint="give the path of a TOML or JSON file", file=str(path)) from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", hint="check its permissions", file=str(path)) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"is not text: byte {error.start} is 0x{content[error.start]:02x}",
            hint="give a TOML or JSON file in UTF-8",
            file=str(path),
        ) from None
    if not text.strip():
        raise SpecError("is empty", hint="docs/reference/problem-file.md shows a whole one", file=str(path))
    return text


def _parse_toml(text: str, file: str) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise SpecError(
            f"is not valid TOML: {error}", hint="the place is named by line and column", file=file
        ) from None


def _parse_json(text: str, file: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object_without_repeats)
    except SpecError as error:
        raise error.in_file(file) from None
    except (RecursionError, ValueError) as error:
        raise SpecError(
            f"is not valid JSON: {error}", hint="the place is named by line and column", file=file
        ) from None


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; a key given twice is an error, as it is in TOML."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise SpecError("is given twice in one object", key=f"`{key}`", hint="keep one of the two")
        table[key] = value
    return table


def _to_struct(raw: Any, kind: type[T]) -> T:
    """Convert plain values, turning msgspec's complaint into ours with key, value and hint."""
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(error, raw, kind) from None
    except OverflowError:
        raise SpecError("holds a whole number too large to compute with", hint="use numbers below 1e300") from None


def _explain(error: msgspec.ValidationError, raw: Any, kind: type[msgspec.Struct]) -> SpecError:
    """Return the SpecError for a failed conversion of `raw` to `kind`."""
    complaint, _, path = str(error).partition(" - at `$")
    owner: Any = kind
    value, key, name = raw, "", ""
    for attribute, position, anything in _PATH_STEP.findall(path.rstrip("`")):
        if anything:  # one value of a table; msgspec does not say which, so find the one that fails
            entry_type = _value_type(_field_type(owner, name))
            for entry, content in value.items():
                try:
                    msgspec.convert(content, entry_type, strict=True)
                except msgspec.ValidationError as inner:
                    return _explain(inner, content, entry_type).under(f"{key}.{entry}")
        elif position:
            value, key = value[int(position)], f"{key}[{position}]"
        else:
            owner = _struct_type(_field_type(owner, name)) if name else owner
            name = attribute
            value = value.get(attribute) if isinstance(value, dict) else None
            key = f"{key}.{attribute}" if key else attribute
    if isinstance(error.__cause__, SpecError):
        return error.__cause__.under(key)
    inner_kind = _struct_type(_field_type(owner, name)) if name else owner
    return _translate(complaint, value, key, owner=owner, name=name, inner_kind=inner_kind)


def _translate(
    complaint: str, value: Any, key: str, *, owner: type, name: str, inner_kind: type | None
) -> SpecError:
    """Return our words for one of msgspec's complaints about `value` at `key`."""
    if unknown := re.match(r"Object contains unknown field `(.*)`", complaint):
        word = unknown.group(1)
        known = inner_kind.__struct_encode_fields__ if inner_kind is not None else ()  # type: ignore[attr-defined]
        return SpecError("is not a known key", key=_join(key, word), hint=did_you_mean(word, known))
    if missing := re.match(r"Object missing required field `(.*)`", complaint):
        word = missing.group(1)
        hint = field_hint(inner_kind, _attribute(inner_kind, word)) if inner_kind is not None else "add it"
        return SpecError("is missing", key=_join(key, word), hint=f"add it: {hint}")
    hint = field_hint(owner, _attribute(owner, name))
    if choice := re.match(r"Invalid enum value '(.*)'", complaint):
        choices = _literals(_field_type(owner, name))
        return SpecError(
            f'is "{choice.group(1)}", expected one of {", ".join(choices)}',
            key=key,
            hint=did_you_mean(choice.group(1), choices),
        )
    if wrong_type := re.match(r"Expected `([^`|]*)[^`]*`, got `(.*)`", complaint):
        expected = _EXPECTED.get(wrong_type.group(1).strip(), wrong_type.group(1))
        return SpecError(f"is {show(value)}, expected {expected}", key=key, hint=hint)
    return SpecError(f"is {show(value)}: {complaint}", key=key, hint=hint)


def _join(prefix: str, word: str) -> str:
    return f"{prefix}.{word}" if prefix else word


def _attribute(kind: type, file_key: str) -> str:
    """Return the field that a file's key stands for: `source` for `from`."""
    fields = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))  # type: ignore[attr-defined]
    return fields.get(file_key, file_key)


def _field_type(kind: type, file_key: str) -> Any:
    return get_type_hints(kind).get(_attribute(kind, file_key))


def _struct_type(hint: Any) -> Any:
    """Return the struct inside a hint such as `tuple[Layer, ...]`, or None."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next((found for argument in get_args(hint) if (found := _struct_type(argument))), None)


def _value_type(hint: Any) -> Any:
    """Return what a `dict[str, X]` holds: X."""
    return get_args(hint)[1]


def _literals(hint: Any) -> list[str]:
    """Return the words of a Literal, also inside `Literal[...] | None`."""
    found: list[str] = []
    for argument in get_args(hint):
        found.extend([argument] if isinstance(argument, str) else _literals(argument))
    return found
