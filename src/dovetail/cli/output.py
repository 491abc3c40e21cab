"""What a user sees: data on stdout, the rest on stderr, and every mistake as `error:` and `hint:`."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from dovetail.errors import DovetailError
from dovetail.logs import JsonLines, tell


def print_json(encoded: bytes) -> None:
    """Print one JSON object on one line."""
    print_line(encoded.decode())


def print_line(line: str) -> None:
    """Print a line of data."""
    sys.stdout.write(line + "\n")


def say(message: str) -> None:
    """Tell a person something beside the data."""
    tell(message)


def write_file(path: Path, content: bytes) -> None:
    """Write a result to a file."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DovetailError(
            f"{path}: cannot be written: {error.strerror}", hint="give a path in a folder that exists"
        ) from None


@contextlib.contextmanager
def errors_shown(*, as_json: bool = False) -> Iterator[None]:
    """Turn a user's mistake into `error:` and `hint:` lines (and a JSON object) and exit status 1."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _shown_by(warnings.showwarning)
            yield
    except DovetailError as error:
        if isinstance(sys.stderr, JsonLines):
            tell(str(error), level="error", hint=error.hint)
        else:
            say(f"error: {error}\n\nhint: {error.hint}")
        if as_json:
            print_line(json.dumps({"error": str(error), "hint": error.hint}))
        raise typer.Exit(1) from None


def _shown_by(before: Callable[..., None]) -> Callable[..., None]:
    """Return what tells a person in plain words what looks wrong with data, and leaves other warnings to `before`."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category.__module__.startswith("dovetail."):
            say(f"warning: {message}")
        else:
            before(message, category, *where, **more)

    return show
