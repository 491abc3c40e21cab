"""DLRM: numbers through a bottom tower, then products of every two vectors, then a top tower."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.losses import loss_block
from dovetail.models.recipe import RECIPES
from dovetail.models.zoo.towers import fc_tower

RECIPE = RECIPES["dlrm"]


class Products(nn.Module):
    """The scalar products of every two of a sample's vectors, beside its first vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, bottom: Tensor, embedded: Tensor) -> Tensor:
        """Return [n, width + v (v - 1) / 2] for v vectors: the one in `bottom` and those in `embedded`."""
        vectors = torch.cat([bottom, embedded], dim=1).view(bottom.shape[0], -1, self.width)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1, device=bottom.device)
        return torch.cat([bottom, products[:, rows, columns]], dim=1)


def dlrm(
    schema: Schema,
    *,
    seed: int = 0,
    loss: str = RECIPE.loss,
    num_rows: int = 1_000_001,
    width: int = 16,
    bottom: Sequence[int] = (512, 256, 64),
    top: Sequence[int] = (512, 256),
    dropout: float = 0.0,
) -> list[Block]:
    """Return the blocks: bottom tower, embedding, products, top tower, loss.

    All slots share one table of `num_rows`, as ids of unlike slots are unlike.
    """
    bottom_tower = fc_tower([schema.num_dense, *bottom, width], prefix="bottom_", after=())
    vectors = schema.num_slots + 1
    inputs = width + vectors * (vectors - 1) // 2
    embedding = SlotEmbedding(num_rows=num_rows, width=width, num_slots=schema.num_slots)
    first, *others = bottom_tower
    return [
        Block(name=first.name, kind=first.kind, module=first.module, after=(), reads=("dense",)),
        *others,
        Block(name="embedding", kind="embedding", module=embedding, after=(), reads=("ids", "offsets")),
        Block(name="products", kind="other", module=Products(width), after=(others[-1].name, "embedding")),
        *fc_tower([inputs, *top], prefix="top_", dropout=dropout, seed=seed),
        *fc_tower([top[-1], 1], prefix="top_", last_relu=False, first_number=len(top) + 1),
        loss_block(loss),
    ]
