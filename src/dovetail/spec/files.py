"""Problem and plan files: TOML or JSON in, values out, and errors that name the file and the key."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from dovetail.errors import SpecError, did_you_mean, nearest
from dovetail.spec.checks import TOO_LARGE, field_hint, show
from dovetail.spec.plan import Plan
from dovetail.spec.problem import Problem
from dovetail.spec.toml import to_toml

T = TypeVar("T", bound=msgspec.Struct)

_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[(\.\.\.)\]")
_GIVEN_TWICE = object()
_WHOLE_FILE = "docs/reference shows a whole one: problem-file.md, plan-file.md, run-file.md"
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
    return struct_from(read_table(path), kind, file=str(path))


def struct_from(table: dict[str, Any], kind: type[T], *, file: str) -> T:
    """Return the table that a file holds as one of our values, or say which of its keys is wrong and how."""
    try:
        return _to_struct(table, kind)
    except SpecError as error:
        raise error.in_file(file) from None


def read_table(path: Path) -> dict[str, Any]:
    """Return the table a TOML or JSON file holds, as plain values."""
    return table_in(_read_text(path), file=str(path))


def table_in(text: str, *, file: str) -> dict[str, Any]:
    """Return the table that the text of a file holds; the ending of its name says whether it is TOML or JSON."""
    suffix = Path(file).suffix.lower()
    is_json = suffix == ".json" or (suffix != ".toml" and text.lstrip().startswith("{"))
    raw = _parse_json(text, file) if is_json else _parse_toml(text, file)
    if not isinstance(raw, dict):
        raise SpecError(
            f"holds {show(raw)}, expected one object", hint="the outermost thing is an object: {...}", file=file
        )
    return raw


def _read_text(path: Path) -> str:
    """Return what a file says, or say why it cannot be read."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        others = path.parent.iterdir() if path.parent.is_dir() else ()
        near = nearest(path.name, sorted(other.name for other in others if other.suffix in {".toml", ".json"}))
        hint = f"did you mean `{near}`?" if near else "give the path of a TOML or JSON file"
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
        raise SpecError("is empty", hint=_WHOLE_FILE, file=str(path))
    return text


def _parse_toml(text: str, file: str) -> Any:
    try:
        return tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise _parse_error(error, "TOML", file) from None


def _parse_json(text: str, file: str) -> Any:
    """Return what JSON text says; a key given twice is an error, as it is in TOML."""
    repeats: list[str] = []

    def to_table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated = [key for key, count in counts.items() if count > 1]
            table.update(dict.fromkeys(repeated, _GIVEN_TWICE))
            repeats.extend(repeated)
        return table

    try:
        raw = json.loads(text, object_pairs_hook=to_table)
        key = _key_given_twice(raw) or repeats[0] if repeats else None
    except (RecursionError, ValueError) as error:
        raise _parse_error(error, "JSON", file) from None
    if key is not None:
        raise SpecError("is given twice", key=key, hint="keep one of the two", file=file)
    return raw


def _key_given_twice(value: Any, key: str = "") -> str | None:
    """Return where in a parsed file the first key that was given twice stands."""
    if value is _GIVEN_TWICE:
        return key
    entries: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        entries = ((_join(key, name), entry) for name, entry in value.items())
    elif isinstance(value, list):
        entries = ((f"{key}[{position}]", entry) for position, entry in enumerate(value))
    return next((found for place, entry in entries if (found := _key_given_twice(entry, place))), None)


def _parse_error(error: Exception, language: str, file: str) -> SpecError:
    """Return our words for text that a parser gave up on."""
    if isinstance(error, RecursionError):
        return SpecError("is nested too deeply to be read", hint=_WHOLE_FILE, file=file)
    if not isinstance(error, tomllib.TOMLDecodeError | json.JSONDecodeError):
        return SpecError(f"holds a whole number {TOO_LARGE}", hint="look for one with thousands of digits", file=file)
    hint = f"look at the place it names and just before it; {_WHOLE_FILE}"
    if re.search("twice|overwrite|Duplicate", str(error)):
        hint = "a key or a table is given twice: keep one of the two"
    return SpecError(f"is not valid {language}: {error}", hint=hint, file=file)


def _to_struct(raw: Any, kind: type[T]) -> T:
    """Convert plain values, turning msgspec's complaint into ours with key, value and hint."""
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(error, raw, kind) from None
    except OverflowError:
        raise SpecError(f"holds a whole number {TOO_LARGE}", hint="use numbers below 1e300") from None


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


def _translate(complaint: str, value: Any, key: str, *, owner: type, name: str, inner_kind: type | None) -> SpecError:
    """Return our words for one of msgspec's complaints about `value` at `key`."""
    if unknown := re.match(r"Object contains unknown field `(.*)`", complaint):
        word = unknown.group(1)
        known = inner_kind.__struct_encode_fields__ if inner_kind is not None else ()  # type: ignore[attr-defined]
        return SpecError("is not a known key", key=_join(key, word), hint=did_you_mean(word, known))
    if missing := re.match(r"Object missing required field `(.*)`", complaint):
        word = missing.group(1)
        hint = field_hint(inner_kind, _attribute(inner_kind, word)) if inner_kind is not None else "add it"
        return SpecError("is missing", key=_join(key, word), hint=f"add it: {hint}")
    if name:
        hint = field_hint(owner, _attribute(owner, name))
    else:
        known = getattr(owner, "__struct_encode_fields__", ())  # none: a plain value in a table of the user's own keys
        hint = "its keys are: " + ", ".join(f"`{key}`" for key in known) if known else "write such a value"
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
    if complaint == "Number out of range":
        return SpecError(f"is {show(value)}, {TOO_LARGE}", key=key, hint=hint)
    return SpecError(f"is {show(value)}: {complaint}", key=key, hint=hint)


def _join(prefix: str, word: str) -> str:
    return f"{prefix}.{word}" if prefix else word


def _attribute(kind: type, file_key: str) -> str:
    """Return the field that a file's key stands for: `source` for `from`."""
    fields: dict[str, str] = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))  # type: ignore[attr-defined]
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


def write_problem(problem: Problem, path: Path, *, types: Mapping[str, str] | None = None) -> None:
    """Write a problem as TOML, or as JSON where the path ends in `.json`; reading it back gives an equal problem.

    Resources that are the catalogue's are written by their `types`, its ids by name: prices are looked up when it is
    read, spot prices too.
    """
    table = _without_nulls(msgspec.to_builtins(problem))
    if not problem.machines:
        del table["machine"]
    table["resource"] = [_of_catalogue(each, (types or {}).get(each["name"])) for each in table["resource"]]
    write_table(table, path)


def _of_catalogue(resource: dict[str, Any], type_: str | None) -> dict[str, Any]:
    """Return a resource that is known by its type, where there is one, with what the catalogue does not know."""
    if type_ is None:
        return resource
    return {"type": type_, **{key: resource[key] for key in ("name", "limit", "site") if key in resource}}


def write_struct(value: msgspec.Struct, path: Path, *, like: msgspec.Struct) -> None:
    """Write a value as TOML or JSON, those keys left out that are as in `like`."""
    write_table(_beyond(msgspec.to_builtins(value), msgspec.to_builtins(like)), path)


def _beyond(value: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Return what a table has otherwise than another, without nulls."""
    found: dict[str, Any] = {}
    for key, entry in value.items():
        other = like.get(key)
        if entry is None or entry == other:
            continue
        both = isinstance(entry, dict) and isinstance(other, dict)
        found[key] = _beyond(entry, other) if both and other is not None else _without_nulls(entry)
    return found


def write_table(plain: Mapping[str, Any], path: Path) -> None:
    """Write plain values as TOML, or as JSON where the path ends in `.json`."""
    content = json.dumps(plain, indent=1) if path.suffix == ".json" else to_toml(plain)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot be written: {error.strerror}", hint="give a path in a folder that exists", file=str(path)
        ) from None


def _without_nulls(value: Any) -> Any:
    """Return plain values without the keys that are null: TOML cannot say them, and leaving them out says the same."""
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(entry) for entry in value]
    return value
