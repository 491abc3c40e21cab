"""What every message is."""

from __future__ import annotations

import math
from typing import Any

import msgspec

LARGEST = 1 << 53
"""Of whole numbers in messages: what JSON, the journal and the metrics hold as well."""


class MessageKind(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """A message: its class name is its tag."""

    def __post_init__(self) -> None:
        """Refuse numbers that nothing has: counts below -1, which stands for none, and seconds that no clock shows."""
        check_numbers(self)


def check_numbers(struct: msgspec.Struct) -> None:
    """Raise ValueError where a number cannot be one; whoever reads an envelope then refuses it."""
    for name in struct.__struct_fields__:
        _check(name, getattr(struct, name))


def _check(name: str, value: Any) -> None:
    kind = type(value)
    if kind is int:
        if not -1 <= value <= LARGEST:
            raise ValueError(f"`{name}` is {value}, expected -1 to {LARGEST}")
    elif kind is float:
        if name.endswith("_s") and not 0 <= value < math.inf:
            raise ValueError(f"`{name}` is {value}, expected a number of seconds")
    elif kind is tuple:
        for each in value:
            _check(name, each)
