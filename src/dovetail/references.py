"""What users write as `package.module:function`, found and translated into words where it is not there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError, did_you_mean


class _Missing(Exception):  # noqa: N818
    """Why a reference leads nowhere, and the way out."""

    def __init__(self, message: str, *, way_out: str) -> None:
        super().__init__(message)
        self.way_out = way_out


def import_function(
    reference: str, *, what: str = "function", error: type[DovetailError] = DovetailError
) -> Callable[..., Any]:
    """Return what `package.module:function` or `folder/file.py:function` names; the working folder is searched too.

    `what` says in the error what it was wanted for.
    """
    try:
        return _found(reference)
    except _Missing as problem:
        raise error(f"{what} `{reference}`: {problem}", hint=problem.way_out) from None


def _found(reference: str) -> Callable[..., Any]:
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise _Missing("is not of the form package.module:function", way_out="write e.g. my_models.click:build")
    module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        public = [word for word in vars(module) if callable(getattr(module, word)) and not word.startswith("_")]
        raise _Missing(f"`{place}` has no function `{name}`", way_out=did_you_mean(name, public))
    result: Callable[..., Any] = found
    return result


def _named_module(place: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as missing:
        if missing.name and place.partition(".")[0] == missing.name.partition(".")[0]:
            raise _Missing(
                f"there is no module `{missing.name}`", way_out="run from the folder that holds it, or set PYTHONPATH"
            ) from None
        raise _Missing(f"it imports `{missing.name}`, which is not installed", way_out="install that") from None
    except Exception as problem:
        raise _Missing(
            f"importing it failed: {type(problem).__name__}: {problem}", way_out=f"try: python -c 'import {place}'"
        ) from None


def _file_module(path: Path) -> Any:
    if not path.is_file():
        raise _Missing(f"there is no file `{path}`", way_out="check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise _Missing(f"`{path}` is not a Python file", way_out="name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise _Missing(
            f"running it failed: {type(problem).__name__}: {problem}", way_out=f"try: python {path}"
        ) from None
    return module
