"""What users write as `package.module:function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.data.imports import ImportProblem, imported
from dovetail.models.errors import ModelError


def import_function(reference: str, *, what: str) -> Callable[..., Any]:
    """Return the function that `package.module:function` names; `what` says what it was wanted for."""
    try:
        return imported(reference)
    except ImportProblem as problem:
        raise ModelError(f"{what} `{reference}`: {problem}", hint=problem.way_out) from None
