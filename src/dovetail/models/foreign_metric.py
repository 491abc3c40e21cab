"""Metrics of other libraries, such as torchmetrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.errors import MissingExtraError
from dovetail.models.answers import Scores, heads_of
from dovetail.models.errors import ModelError
from dovetail.models.imports import import_function


class Foreign:
    """A metric of another library, such as torchmetrics: anything with `update(scores, targets)` and `compute()`.

    It gets chances for one score a sample, and raw scores otherwise; labels that are whole numbers come as such. Where
    the model answers several parts it gets them all, as they are, with all labels.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    def update(self, scores: Scores, targets: Tensor) -> None:
        """Take in the answers to a batch, and what was true."""
        try:
            self._inner.update(*self._given(scores, targets))
        except Exception as problem:  # whatever somebody else's code raises
            raise self._failed(problem, scores, targets) from problem

    def _given(self, scores: Scores, targets: Tensor) -> tuple[Any, Tensor]:
        """Return what the metric is called with."""
        targets = targets.detach().cpu()
        if not isinstance(scores, Tensor):
            return {name: part.detach().cpu() for name, part in heads_of(scores).items()}, targets
        scores = scores.detach().cpu()
        if bool((targets == targets.round()).all()) and getattr(self._inner, "is_differentiable", None) is not True:
            targets = targets.long()
        if scores.numel() == targets.numel():
            scores = scores.reshape(targets.shape)
            if bool(((targets == 0) | (targets == 1)).all()):
                scores = torch.sigmoid(scores)
        return scores, targets

    def _failed(self, problem: Exception, scores: Scores, targets: Tensor) -> ModelError:
        """Return what went wrong in the metric, with what it was given."""
        if isinstance(scores, Tensor):
            hint = f"it was given scores of shape {list(scores.shape)} and labels of shape {list(targets.shape)}"
        else:
            parts = list(heads_of(scores))
            hint = f"it was given a dict of the parts {', '.join(parts)} and all labels; `{parts[0]}.{self._name}` is "
            hint += "given those of one part"
        return ModelError(f"metric `{self._name}` failed: {type(problem).__name__}: {problem}", hint=hint)

    def merge(self, other: Foreign) -> None:
        """Refuse: what another library keeps is its own."""
        raise ModelError(f"`{self._name}` of two workers cannot be joined", hint="evaluate in one process")

    def value(self) -> float:
        """Return the metric."""
        try:
            return float(self._inner.compute())
        except Exception as problem:
            raise ModelError(
                f"metric `{self._name}` failed: {type(problem).__name__}: {problem}",
                hint="its compute() returns one number",
            ) from problem


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


def of_part(name: str) -> tuple[str, str] | None:
    """Return part and metric of a name such as `click.torchmetrics:CohenKappa`; None where it is a module's own."""
    head, dot, inner = name.partition(".")
    place = inner.rpartition(":")[0]
    is_there = place.endswith(".py") or (place != "py" and _is_installed(place))
    return (head, inner) if dot and head.isidentifier() and is_there and not _is_installed(f"{head}.{place}") else None


def _is_installed(package: str) -> bool:
    """Say whether a package, or a module of one, can be imported."""
    from importlib.util import find_spec  # noqa: PLC0415 - only here

    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # what it would lie in is not there, or is no package
        return False
