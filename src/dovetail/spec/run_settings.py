"""A run file with some of its keys set otherwise: by flags of the command line, or by keywords in Python."""

from __future__ import annotations

import copy
import datetime as dt
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.files import struct_from
from dovetail.spec.run import Run

SECTIONS_SEARCHED = ("training", "optimizer", "data", "checkpoint", "validation", "faults", "network")
"""Where a key without a section is looked for, in this order."""


def with_settings(run: Run, settings: Mapping[str, Any], *, place: str) -> Run:
    """Return the run with dotted keys set, such as `training.batch`; `place` is what errors call the source of them."""
    return run_from(msgspec.json.decode(msgspec.json.encode(run)), settings, place=place)


def run_from(table: Mapping[str, Any], settings: Mapping[str, Any], *, place: str) -> Run:
    """Return the run that a plain table describes, with dotted keys set."""
    whole = copy.deepcopy(dict(table))
    for key, value in settings.items():
        _set(whole, key, value, place=place)
    return struct_from(whole, Run, file=place)


def _set(table: dict[str, Any], key: str, value: Any, *, place: str) -> None:
    """Set a dotted key; a number in it is a position in a list."""
    *path, last = key.split(".")
    inner: Any = table
    for word in path:
        inner = _step(inner, word, key, place)
    if isinstance(inner, list):
        _step(inner, last, key, place)
        inner[int(last)] = value
    elif isinstance(inner, dict):
        inner[last] = value
    else:
        raise SpecError("is not a known key", key=key, hint=f"`{'.'.join(path)}` is no table", file=place)


def _step(inner: Any, word: str, key: str, place: str) -> Any:
    """Return what lies one word further in."""
    if isinstance(inner, dict):
        return inner.setdefault(word, {})
    if isinstance(inner, list):
        if word.isdigit() and int(word) < len(inner):
            return inner[int(word)]
        raise SpecError(
            f"has no entry `{word}`", key=key, hint=f"entries go from 0 to {len(inner) - 1}, e.g. worker.0", file=place
        )
    raise SpecError("is not a known key", key=key, hint=f"there is nothing inside `{word}`", file=place)


def parse_setting(word: str, *, example: str = "--set training.tail=0.1") -> tuple[str, Any]:
    """Return `training.tail=0.1` as its key and value."""
    key, equals, text = word.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"`{word}` sets nothing", hint=f"write KEY=VALUE, e.g. {example}")
    return key.strip(), parse_value(text)


def parse_value(text: str) -> Any:
    """Return what a command line says: TOML where it is that, else a list where commas part it, else the text itself.

    `a,b` and `["a", "b"]` are the same list, and `a,` is a list of one; a comma alone is text.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        parts = [part.strip() for part in text.split(",")]
        return [parse_value(part) for part in parts if part] if len(parts) > 1 and any(parts) else text.strip()
    return text.strip() if isinstance(value, dt.date | dt.time) else value


def dotted_key(name: str) -> str:
    """Return the dotted key of a setting given by its last word: `tail` is `training.tail`."""
    known: dict[str, str] = {}
    for field in msgspec.structs.fields(Run):
        known.setdefault(field.encode_name, field.encode_name)
    for section in SECTIONS_SEARCHED:
        kind: Any = next(field.type for field in msgspec.structs.fields(Run) if field.name == section)
        for inner in msgspec.structs.fields(kind):
            if inner.name in ("name", "options"):
                continue  # of what?
            known.setdefault(inner.encode_name, f"{section}.{inner.encode_name}")
    if name not in known:
        raise SpecError("is not a setting of a run", key=name, hint=did_you_mean(name, known))
    return known[name]
