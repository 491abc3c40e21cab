"""2EMB: CTR-DNN with a second, small table over the first slots."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.losses import loss_block
from dovetail.models.recipe import RECIPES
from dovetail.models.zoo.towers import Join, fc_tower

RECIPE = RECIPES["2emb"]


def two_embeddings(
    schema: Schema,
    *,
    seed: int = 0,
    loss: str = RECIPE.loss,
    num_rows: int = 1_000_001,
    width: int = 10,
    hidden: Sequence[int] = (400, 400, 50),
    small_rows: int = 100,
    small_slots: int = 5,
    small_hidden: int = 128,
    dropout: float = 0.0,
) -> list[Block]:
    """Return the blocks of both branches, their concatenation, two fully connected layers and the loss."""
    slots = schema.num_slots
    large = SlotEmbedding(num_rows=num_rows, width=width, num_slots=slots)
    few = min(small_slots, slots)
    small = SlotEmbedding(num_rows=small_rows, width=width, num_slots=slots, last_slot=few)
    tower = fc_tower([slots * width + schema.num_dense, *hidden], dropout=dropout, seed=seed)
    return [
        Block(name="embedding", kind="embedding", module=large, after=(), reads=("ids", "offsets")),
        Block(name="dense_concat", kind="concat", module=Join(), reads=("dense",)),
        *tower,
        Block(name="small_embedding", kind="embedding", module=small, after=(), reads=("ids", "offsets")),
        *fc_tower([few * width, small_hidden], prefix="small_"),
        Block(name="concat", kind="concat", module=Join(), after=(tower[-1].name, "small_relu1")),
        Block(name="fc_joint", kind="fc", module=nn.Linear(hidden[-1] + small_hidden, 2)),
        Block(name="fc_out", kind="fc", module=nn.Linear(2, 2)),
        loss_block(loss),
    ]
