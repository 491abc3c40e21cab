"""Data that a program hands over, as a run's files name them and as its workers read them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from torch import nn

from dovetail.data.adopt import as_source
from dovetail.data.load import how_made
from dovetail.data.source import Source
from dovetail.data.tables import as_table
from dovetail.models.whole import inputs_of


def adopted(
    data: Any, options: Mapping[str, Any], model: nn.Module | None
) -> tuple[str | None, Source | None, dict[str, Any]]:
    """Return what the run's files call some data, the source where it is an object, and the options of a name."""
    if data is None or isinstance(data, str):
        return data, None, dict(options)
    made = how_made(data)
    if made is not None and not options:
        with suppress(TypeError):
            return made[0], None, plain(made[1])
    with suppress(TypeError):
        return name_of(data), source_of(data, options, model), plain(options)
    return name_of(data), source_of(data, options, model), {}


def source_of(data: Any, options: Mapping[str, Any], model: nn.Module | None) -> Source:
    """Return some data as a source; inputs without names have those that the model gives them."""
    if isinstance(data, Source):
        return data
    inputs = inputs_of(model) if "names" not in options and as_table(data) is None else None
    return as_source(data, **options, **({"names": inputs} if inputs else {}))


def name_of(thing: object) -> str:
    """Return what the run's files call an object of the user's own."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def plain(value: Any) -> Any:
    """Return a value as a file would hold it."""
    return msgspec.json.decode(msgspec.json.encode(value))
