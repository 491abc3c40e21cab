"""Metrics of other libraries, such as torchmetrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.errors import MissingExtraError
from dovetail.models.errors import ModelError
from dovetail.models.imports import import_function


class Foreign:
    """A metric of another library, such as torchmetrics: anything with `update(scores, targets)` and `compute()`.

    It gets chances for one score a sample, and raw scores otherwise; labels that are whole numbers come as such.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Take in the answers to a batch, and what was true."""
        scores, targets = scores.detach().cpu(), targets.detach().cpu()
        if bool((targets == targets.round()).all()) and getattr(self._inner, "is_differentiable", None) is not True:
            targets = targets.long()
        if scores.numel() == targets.numel():
            scores = scores.reshape(targets.shape)
            if bool(((targets == 0) | (targets == 1)).all()):
                scores = torch.sigmoid(scores)
        self._inner.update(scores, targets)

    def merge(self, other: Foreign) -> None:
        """Refuse: what another library keeps is its own."""
        raise ModelError(f"`{self._name}` of two workers cannot be joined", hint="evaluate in one process")

    def value(self) -> float:
        """Return the metric."""
        return float(self._inner.compute())


def foreign_metric(name: str) -> Foreign:
    """Return a metric that another package makes."""
    try:
        maker = import_function(name, what="metric")
    except ModelError:
        if name.startswith("torchmetrics") and not _is_installed("torchmetrics"):
            raise MissingExtraError("torchmetrics", extra="metrics") from None
        raise
    try:
        made = maker()
    except Exception as problem:
        raise ModelError(
            f"metric `{name}` could not be made: {type(problem).__name__}: {problem}",
            hint="name a function of your own, package.module:function, that makes it with its options",
        ) from problem
    if not callable(getattr(made, "update", None)) or not callable(getattr(made, "compute", None)):
        raise ModelError(
            f"`{name}` made a {type(made).__name__}, which is no metric",
            hint="return an object with update(scores, targets) and compute()",
        )
    return Foreign(made, name)


def _is_installed(package: str) -> bool:
    """Say whether a package can be imported."""
    from importlib.util import find_spec  # noqa: PLC0415 - only here

    return find_spec(package) is not None
