"""A model as its user wrote it, run as it is: nothing is traced, so nothing is asked of it but what training needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dovetail.data.batch import FIELDS, Batch
from dovetail.models.answers import LossSpec, Scores, has_one_number, heads_of
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.losses import make_loss, weighted_sum
from dovetail.models.recipe import Recipe
from dovetail.models.tracing import first_reads, steps_of

LOW_TYPES = (torch.bfloat16, torch.float16)
NOT_INPUTS = ("labels", "weights")
"""Fields that a model in lower precision gets as they are: classes above 256 are no bfloat16."""

DENSE = "dense"
INPUT = "x"
"""What the one input of samples without names is called."""


_FIRST: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()
"""The first parameter of modules that were called: to look for it at every call takes longer than a small layer."""


def suited(value: Any, module: nn.Module, name: str) -> Any:
    """Return a field of a batch as a module takes it: numbers in its type, where all it has is bfloat16 or float16."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or name in NOT_INPUTS:
        return value
    first = _FIRST.get(module)
    if first is None:
        first = next((each for each in module.parameters() if each.is_floating_point()), None)
        if first is None:
            return value
        _FIRST[module] = first
    if first.dtype not in LOW_TYPES:
        return value
    is_alike = all(each.dtype == first.dtype for each in module.parameters() if each.is_floating_point())
    return value.to(first.dtype) if is_alike else value


def in_full(scores: Scores) -> Scores:
    """Return an answer in float32 where it is less, for a loss that adds up many."""
    if isinstance(scores, Tensor):
        return scores.float() if scores.dtype in LOW_TYPES else scores
    parts = heads_of(scores)
    if not any(isinstance(part, Tensor) and part.dtype in LOW_TYPES for part in parts.values()):
        return scores
    return {name: part.float() if part.dtype in LOW_TYPES else part for name, part in parts.items()}


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
        self._answer = _ways(module)

    def reads_of(self, fields: Collection[str] = ()) -> tuple[str, ...]:
        """Return what the module reads of batches that have these further fields."""
        return self._answer.reads(fields)

    def not_given(self, fields: Collection[str] = ()) -> tuple[str, ...]:
        """Return the arguments of the module's forward that keep their defaults with batches of these fields."""
        return self._answer.not_given(fields)

    @property
    def owner(self) -> nn.Module:
        """The module whose names the parameters go by."""
        return self.module

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss, summed over the samples."""
        return self.outcome(batch)[0]

    def predict(self, batch: Batch) -> Scores:
        """Return the model's answer."""
        return in_full(self._answer(batch))

    def check_weights(self, batch: Batch) -> None:
        """Refuse weights of samples where the loss is one number for all of them."""
        if batch.weights is not None and self.loss is not None and has_one_number(self.loss):
            raise ModelError(
                "the data have weights, and the model's loss is one number for all samples",
                hint='answer one value a sample, loss = "answer", which is then multiplied by its weight',
            )

    def outcome(self, batch: Batch) -> tuple[Tensor, Scores]:
        """Return the loss, summed over the samples, and the model's answer."""
        if self.loss is None:
            raise ModelError(
                f"{type(self.module).__name__} has no loss", hint='name one, e.g. loss = "logistic" or "cross-entropy"'
            )
        scores = in_full(self._answer(batch))
        return weighted_sum(self.loss(scores, batch.labels), batch.weights), scores

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is found again: it would be copied beside the module that it calls."""
        return {name: value for name, value in self.__dict__.items() if name != "_answer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find out anew how the module is called."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._answer = _ways(self.module)


def inputs_of(module: nn.Module | None) -> list[str] | None:
    """Return what a module calls its inputs; None where they have no names of their own."""
    module = module.module if isinstance(module, WholeModel) else module
    if module is None or isinstance(module, nn.Sequential | LayerGraph):
        return None
    return [each.name for each in _parameters(module)] or None


class _Called:
    """How a module is called with the fields of a batch."""

    def __init__(self, module: nn.Module, needed: Sequence[str], optional: Sequence[str], alone: str | None) -> None:
        """Keep names of arguments; one that is `alone` gets the numbers where no field has its name."""
        self._module, self.needed, self.optional, self.alone = module, tuple(needed), tuple(optional), alone

    def reads(self, fields: Collection[str]) -> tuple[str, ...]:
        """Return what is read of batches with these further fields."""
        if self.alone is not None:
            return ((self.alone if self.alone in fields else DENSE), *self.needed)
        return (*self.needed, *(name for name in self.optional if name in FIELDS or name in fields))

    def not_given(self, fields: Collection[str]) -> tuple[str, ...]:
        """Return the arguments that keep their defaults with these further fields."""
        return tuple(name for name in self.optional if name not in FIELDS and name not in fields)

    def __call__(self, batch: Batch) -> Scores:
        """Return the module's answer."""
        named = {name: suited(getattr(batch, name), self._module, name) for name in self.reads(batch.extra)}
        answer: Scores = self._module(*named.values()) if self.alone is not None else self._module(**named)
        return answer


def _ways(module: nn.Module) -> _Called | _Steps:
    """Return how a module is called."""
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"a {type(module).__name__} is not a model",
            hint="return an nn.Sequential, a LayerGraph or another nn.Module",
        )
    return _Steps(module) if isinstance(module, nn.Sequential) else _by_name(module)


class _Steps:
    """A sequence: each layer gets the output of the one before, then the fields that its attribute `reads` names."""

    def __init__(self, model: nn.Sequential) -> None:
        """Look which fields each layer reads."""
        self._model = model
        self._layers = [layer for _, layer in steps_of(model)]
        if not self._layers:
            raise ModelError("the model is an empty nn.Sequential", hint="give it at least one layer")
        self._read = [tuple(getattr(layer, "reads", ())) for layer in self._layers]
        self._is_free = not self._read[0] and first_reads(self._layers[0]) == (DENSE,)
        self._read[0] = self._read[0] or first_reads(self._layers[0])

    def reads(self, fields: Collection[str]) -> tuple[str, ...]:
        """Return what is read of batches with these further fields."""
        return tuple(dict.fromkeys([*self._first(fields), *(name for names in self._read[1:] for name in names)]))

    def not_given(self, fields: Collection[str]) -> tuple[str, ...]:
        """Return nothing: layers of a sequence have no defaults that a batch could fill."""
        return ()

    def _first(self, fields: Collection[str]) -> tuple[str, ...]:
        """Return what the first layer reads: the one input of samples that have no numbers, where there is one."""
        return (INPUT,) if self._is_free and INPUT in fields else self._read[0]

    def __call__(self, batch: Batch) -> Scores:
        """Return the last layer's answer."""
        value: Any = self._layers[0](*self._fields(batch, self._first(batch.extra)))
        for layer, names in zip(self._layers[1:], self._read[1:], strict=True):
            value = layer(value, *self._fields(batch, names))
        answer: Scores = value
        return answer

    def _fields(self, batch: Batch, names: Sequence[str]) -> list[Any]:
        """Return fields of a batch."""
        return [suited(getattr(batch, name), self._model, name) for name in names]


def _by_name(module: nn.Module) -> _Called:
    """Arguments of `forward` are fields of the batch; those with other names keep their defaults."""
    parameters = _parameters(module)
    needed = [each.name for each in parameters if each.default is inspect.Parameter.empty]
    if not parameters:
        raise ModelError(
            f"forward of {type(module).__name__} reads nothing of a batch",
            hint=f"name its arguments after fields of a batch: {', '.join(FIELDS)}",
        )
    if len(parameters) == 1 and needed and needed[0] not in FIELDS:
        return _Called(module, (), (), needed[0])
    return _Called(module, needed, [each.name for each in parameters if each.name not in needed], None)


def _parameters(module: nn.Module) -> list[inspect.Parameter]:
    """Return the arguments of `forward` that have names."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in inspect.signature(module.forward).parameters.values() if each.kind not in kinds]
