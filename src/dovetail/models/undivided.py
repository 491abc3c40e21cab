"""A model that cannot be divided into layers, as a graph of one layer: it is profiled and planned as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.models.answers import LossSpec, Scores, heads_of
from dovetail.models.block import Block
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.task import infer_loss
from dovetail.models.whole import WholeModel

TARGETS = ("labels", "weights")


class Undivided(nn.Module):
    """A whole model and its loss, called with the fields of a batch one by one, as layers are."""

    def __init__(self, whole: WholeModel, reads: Sequence[str], fields: Sequence[str]) -> None:
        """Call `whole` with the values of `reads`; `fields` are those that the data have besides."""
        super().__init__()
        self.whole = whole
        self._reads, self._fields = tuple(reads), tuple(fields)

    def forward(self, *values: Any) -> Tensor:
        """Return the loss, summed over the samples."""
        batch: Any = SimpleNamespace(extra=self._fields, **dict(zip(self._reads, values, strict=True)))
        return self.whole.outcome(batch)[0]


def undivided(whole: WholeModel, batch: Batch, *, loss: LossSpec | None = None) -> LayerGraph:
    """Return a model as one layer that ends in its loss; absent, that is what labels and answers tell."""
    name = type(whole.module).__name__
    try:
        with torch.no_grad():
            scores = whole.predict(batch)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        raise ModelError(
            f"forward of {name} failed with the first samples: {type(problem).__name__}: {problem}",
            hint="call it yourself with such a batch to see where it fails",
        ) from None
    fields = tuple(batch.extra)
    reads = tuple(dict.fromkeys([*whole.reads_of(fields), *TARGETS]))
    with_loss = WholeModel(whole.module, loss=loss or told_loss(scores, batch.labels), recipe=whole.recipe)
    block = Block(name=name.lower(), kind="other", module=Undivided(with_loss, reads, fields), after=(), reads=reads)
    return LayerGraph([block], recipe=whole.recipe)


def told_loss(scores: Scores, labels: Tensor) -> LossSpec:
    """Return the loss that answers and labels tell; what the model computes itself counts as a mean.

    Several numbers a sample and one label are classes, whichever of them these samples have: nobody learns here.
    """
    if isinstance(scores, Tensor):
        if not scores.dim():
            return "answer-mean"
        are_classes = scores.dim() == 2 and scores.shape[1] > 2 and labels.dim() == 1
        return "cross-entropy" if are_classes else infer_loss(scores, labels)
    own = {name: "answer-mean" for name, part in heads_of(scores).items() if not part.dim()}
    return infer_loss(scores, labels, own)
