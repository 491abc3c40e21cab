"""Packages whose names are imported when they are first asked for, so that nobody loads torch or a compiler in vain.

Such a package lists its names as imports under `if TYPE_CHECKING:`, with another name by `as` where it likes, and in
`__all__`, and ends in `__getattr__, __dir__ = on_demand(__name__)`.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_demand(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` of a package, which finds what it imports for type checkers alone, and its `__dir__`."""
    homes: dict[str, tuple[str, str]] = {}

    def get(name: str) -> Any:
        if not homes:
            homes.update(_listed(Path(str(sys.modules[package].__file__))))
        if name not in homes:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        module, word = homes[name]
        if module == package:
            return importlib.import_module(f"{package}.{word}")
        found = getattr(importlib.import_module(module), word)
        return sys.modules.get(f"{package}.{name}", found)  # a package of that name is what is there from now on

    def names() -> list[str]:
        known = vars(sys.modules[package])
        return sorted({*known["__all__"], *(name for name in known if name.startswith("__"))})

    return get, names


def _listed(path: Path) -> dict[str, tuple[str, str]]:
    """Return module and name there of each name that a file imports under an `if`."""
    conditions = (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = (node for condition in conditions for node in condition.body if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}
