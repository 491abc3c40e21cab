"""Models whose last layer cannot be trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.recipe import Recipe


class BrokenLoss(nn.Module):
    """Has a loss that is no number."""

    def forward(self, score: Tensor, labels: Tensor) -> Tensor:
        return (score.sum() - labels.sum()) * torch.nan


class Raising(nn.Module):
    """Fails where it is trained."""

    def forward(self, score: Tensor, labels: Tensor) -> Tensor:
        if score.shape[1] != 1 or score.requires_grad:
            raise RuntimeError("it cannot be computed")
        return score.sum() - labels.sum()


def _graph(schema: Schema, loss: nn.Module) -> LayerGraph:
    return LayerGraph(
        [
            Block(name="layer", kind="fc", module=nn.Linear(schema.num_dense, 1), after=(), reads=("dense",)),
            Block(name="loss", kind="loss", module=loss, reads=("labels",)),
        ],
        recipe=Recipe(metric="none"),
    )


def broken_loss(schema: Schema) -> LayerGraph:
    """Return a model whose loss is no number."""
    return _graph(schema, BrokenLoss())


def raising(schema: Schema) -> LayerGraph:
    """Return a model that raises."""
    return _graph(schema, Raising())
