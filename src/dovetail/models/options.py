"""Options of a model, held to the types that its maker says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from dovetail.models.errors import ModelError


def check_options(name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options of another type than `maker` takes: whole numbers, numbers, text, and lists of them."""
    hints = get_type_hints(maker)
    for option, value in options.items():
        kind = hints.get(option)
        words = _words(kind)
        if words is not None and not _fits(value, kind):
            raise ModelError(
                f"`{name}` has {option} = {value!r}, expected {words[0]}", hint=f"e.g. {option}={words[1]}"
            )


def _words(kind: Any) -> tuple[str, str] | None:
    """Return what a type is called, and an example of it; None for types that are not checked."""
    if get_origin(kind) is Sequence and get_args(kind) == (int,):
        return "whole numbers", "64,32"
    return {int: ("a whole number", "100"), float: ("a number", "0.1"), str: ("a word", "name")}.get(kind)


def _fits(value: Any, kind: Any) -> bool:
    """Say whether a value is of a type."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str)
    return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(each, int) for each in value)
