"""A model whose gradients are whole numbers that depend on the rows: their order does not matter, stale rows show."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.recipe import Recipe
from dovetail.spec.run import RunModel
from tests.runtime.runs import NUM_ROWS


class Choose(nn.Module):
    """A loss whose gradient for every use of a row is -1 or -2, by the whole part of what was pooled."""

    def __init__(self, pause_s: float, until: str) -> None:
        """Wait for so long with every sample until the file is there: time for a test to do things in."""
        super().__init__()
        self.samples = nn.Parameter(torch.zeros(1))
        self._pause_s, self._until = pause_s, until

    def forward(self, pooled: Tensor, labels: Tensor) -> Tensor:
        if self._until and not Path(self._until).exists():
            time.sleep(self._pause_s * len(labels))
        factors = 1 + torch.floor(pooled.detach()) % 2
        return -(pooled * factors).sum() - self.samples.sum() * len(labels)


def choosy_model(schema: Schema, pause_s: float = 0.0, until: str = "") -> LayerGraph:
    """Return the model, which takes `pause_s` a sample until the file `until` is there."""
    embedding = SlotEmbedding(num_rows=NUM_ROWS, width=1, num_slots=schema.num_slots)
    return LayerGraph(
        [
            Block(name="embedding", kind="embedding", module=embedding, after=(), reads=("ids", "offsets")),
            Block(name="loss", kind="loss", module=Choose(pause_s, until), reads=("labels",)),
        ],
        recipe=Recipe(metric="none"),
    )


def choosy(pause_s: float = 0.0, until: Path | None = None) -> RunModel:
    """Return the model of a run file."""
    options = {"pause_s": pause_s, **({} if until is None else {"until": str(until)})}
    return RunModel(name="tests.runtime.choosy:choosy_model", options=options)
