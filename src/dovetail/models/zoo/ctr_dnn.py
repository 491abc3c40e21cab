"""CTR-DNN: one embedding table, three fully connected layers, click or no click."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.losses import loss_block
from dovetail.models.recipe import RECIPES
from dovetail.models.zoo.towers import Join, fc_tower

RECIPE = RECIPES["ctr-dnn"]
"""As in the public version of the model."""


def ctr_dnn(
    schema: Schema,
    *,
    seed: int = 0,
    loss: str = RECIPE.loss,
    num_rows: int = 1_000_001,
    width: int = 10,
    hidden: Sequence[int] = (400, 400, 400),
    dropout: float = 0.0,
) -> list[Block]:
    """Return the blocks: embedding, concat with the numbers, fully connected layers, fc to 2 scores, loss."""
    inputs = schema.num_slots * width + schema.num_dense
    embedding = SlotEmbedding(num_rows=num_rows, width=width, num_slots=schema.num_slots)
    return [
        Block(name="embedding", kind="embedding", module=embedding, after=(), reads=("ids", "offsets")),
        Block(name="concat", kind="concat", module=Join(), reads=("dense",)),
        *fc_tower([inputs, *hidden], dropout=dropout, seed=seed),
        *fc_tower([hidden[-1], 2], last_relu=False, first_number=len(hidden) + 1),
        loss_block(loss),
    ]
