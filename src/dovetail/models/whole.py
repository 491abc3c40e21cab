"""A model as its user wrote it, run as it is: nothing is traced, so nothing is asked of it but what training needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dovetail.data.batch import FIELDS, Batch
from dovetail.models.errors import ModelError
from dovetail.models.losses import LossSpec, Scores, make_loss, weighted_sum
from dovetail.models.recipe import Recipe
from dovetail.models.sequential import first_reads, steps_of

Answer = Callable[[Batch], Scores]


class WholeModel(nn.Module):
    """A user's module and the loss that it is trained by.

    `model(batch)` is the loss, summed over the samples; `predict(batch)` what the module answers. The module is called
    with fields of the batch, by the names of its arguments.
    """

    def __init__(
        self, module: nn.Module, *, loss: LossSpec | Callable[..., Any] | None = None, recipe: Recipe | None = None
    ) -> None:
        """Keep the module; without a `loss` it can answer, but not be trained."""
        super().__init__()
        self.module = module
        self.recipe = recipe or Recipe()
        self.loss = None if loss is None else make_loss(loss)
        self.reads, self._answer = _ways(module)

    @property
    def owner(self) -> nn.Module:
        """The module whose names the parameters go by."""
        return self.module

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss, summed over the samples."""
        return self.outcome(batch)[0]

    def predict(self, batch: Batch) -> Scores:
        """Return the model's answer."""
        return self._answer(batch)

    def outcome(self, batch: Batch) -> tuple[Tensor, Scores]:
        """Return the loss, summed over the samples, and the model's answer."""
        if self.loss is None:
            raise ModelError(
                f"{type(self.module).__name__} has no loss", hint='name one, e.g. loss = "logistic" or "cross-entropy"'
            )
        scores = self._answer(batch)
        return weighted_sum(self.loss(scores, batch.labels), batch.weights), scores

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is found again: it would be copied beside the module that it calls."""
        return {name: value for name, value in self.__dict__.items() if name != "_answer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find out anew how the module is called."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.reads, self._answer = _ways(self.module)


def _ways(module: nn.Module) -> tuple[tuple[str, ...], Answer]:
    """Return the fields of a batch that a module reads, and what calls it with them."""
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"a {type(module).__name__} is not a model",
            hint="return an nn.Sequential, a LayerGraph or another nn.Module",
        )
    return _ways_of_sequential(module) if isinstance(module, nn.Sequential) else _ways_of_forward(module)


def _ways_of_sequential(model: nn.Sequential) -> tuple[tuple[str, ...], Answer]:
    """Each layer gets the output of the one before, then the fields that its attribute `reads` names."""
    layers = [layer for _, layer in steps_of(model)]
    if not layers:
        raise ModelError("the model is an empty nn.Sequential", hint="give it at least one layer")
    read = [tuple(getattr(layer, "reads", ())) for layer in layers]
    read[0] = read[0] or first_reads(layers[0])
    for name in (name for names in read for name in names):
        _check_field(name, f"a layer of {type(model).__name__} reads")

    def answer(batch: Batch) -> Scores:
        value: Any = layers[0](*(getattr(batch, name) for name in read[0]))
        for layer, names in zip(layers[1:], read[1:], strict=True):
            value = layer(value, *(getattr(batch, name) for name in names))
        result: Scores = value
        return result

    return tuple(dict.fromkeys(name for names in read for name in names)), answer


def _ways_of_forward(module: nn.Module) -> tuple[tuple[str, ...], Answer]:
    """Arguments of `forward` are fields of the batch; those with other names keep their defaults."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [each for each in inspect.signature(module.forward).parameters.values() if each.kind not in kinds]
    needed = [each.name for each in parameters if each.default is inspect.Parameter.empty]
    if len(parameters) == 1 and needed and needed[0] not in FIELDS:
        return ("dense",), lambda batch: module(batch.dense)
    for name in needed:
        _check_field(name, f"forward of {type(module).__name__} takes")
    names = tuple(each.name for each in parameters if each.name in FIELDS)
    if not names:
        raise ModelError(
            f"forward of {type(module).__name__} reads nothing of a batch",
            hint=f"name its arguments after fields of a batch: {', '.join(FIELDS)}",
        )
    return names, lambda batch: module(**{name: getattr(batch, name) for name in names})


def _check_field(name: str, who: str) -> None:
    """Refuse what no batch has."""
    if name not in FIELDS:
        raise ModelError(
            f"{who} `{name}`, which no batch has",
            hint=f"name its arguments after fields of a batch: {', '.join(FIELDS)}",
        )
