"""Packages whose names are imported when they are first asked for, so that nobody loads torch or a compiler in vain.

Such a package lists its names as imports under `if TYPE_CHECKING:`, and ends in `__getattr__ = on_demand(__name__)`.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_demand(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: it finds what the package imports for type checkers alone."""
    homes: dict[str, str] = {}

    def get(name: str) -> Any:
        if not homes:
            homes.update(_listed(Path(str(sys.modules[package].__file__))))
        if name not in homes:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        return getattr(importlib.import_module(homes[name]), name)

    return get


def _listed(path: Path) -> dict[str, str]:
    """Return the module of each name that a file imports under an `if`."""
    conditions = (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = (node for condition in conditions for node in condition.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}
