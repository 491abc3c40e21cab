"""MATCHNET: a user tower and an item tower whose cosine says what matches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.data.batch import Batch
from dovetail.data.items import ItemPool
from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.draws import sample_units, signed_stream
from dovetail.models.embedding import SlotEmbedding, select_slots
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.losses import loss_block
from dovetail.models.recipe import RECIPES
from dovetail.models.zoo.towers import fc_tower

RECIPE = RECIPES["matchnet"]


class Negatives(nn.Module):
    """Draws items that were not clicked, from (seed, sample id), all items of the pool equally likely."""

    def __init__(self, *, num_items: int, num_negatives: int, seed: int) -> None:
        """Keep how many to draw out of how many."""
        super().__init__()
        self.num_items, self.num_negatives = num_items, num_negatives
        self._stream = signed_stream(seed, "negatives")

    def forward(self, sample_ids: Tensor) -> Tensor:
        """Return indices into the pool: int64 [n, num_negatives]."""
        return (sample_units(self._stream, sample_ids, self.num_negatives) * self.num_items).long()


class ItemEmbedding(SlotEmbedding):
    """The item's slots of each sample, and those of its negatives from the pool."""

    def __init__(self, pool_ids: Tensor, *, num_rows: int, width: int, num_slots: int, first_slot: int) -> None:
        """Keep the ids of all items beside the table."""
        super().__init__(num_rows=num_rows, width=width, num_slots=num_slots, first_slot=first_slot)
        self.register_buffer("pool_ids", pool_ids, persistent=False)
        self.pool_ids: Tensor

    def forward(self, negatives: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:  # type: ignore[override]
        """Return [n, 1 + negatives, slots * width], the clicked item first."""
        chosen, bags = select_slots(ids, offsets, self.num_slots, self.first_slot, self.last_slot)
        drawn = self.pool_ids[negatives.reshape(-1)].reshape(-1)
        ends = chosen.shape[0] + torch.arange(1, drawn.shape[0] + 1, device=bags.device)
        rows = self.look_up(torch.cat([chosen, drawn]), torch.cat([bags, ends]))
        num_samples, wide = negatives.shape[0], (self.last_slot - self.first_slot) * self.width
        clicked = rows[: bags.shape[0] - 1].view(num_samples, 1, wide)
        return torch.cat([clicked, rows[bags.shape[0] - 1 :].view(num_samples, -1, wide)], dim=1)

    def embed_pool(self) -> Tensor:
        """Return the vectors of all items: [items, slots * width]."""
        return self.rows(self.pool_ids).flatten(1)


class ItemNumbers(nn.Module):
    """Adds the numbers of each sample's item, and those of its negatives from the pool."""

    def __init__(self, pool_dense: Tensor) -> None:
        super().__init__()
        self.register_buffer("pool_dense", pool_dense, persistent=False)
        self.pool_dense: Tensor

    def forward(self, embedded: Tensor, negatives: Tensor, dense: Tensor) -> Tensor:
        """Return [n, 1 + negatives, slots * width + numbers]."""
        numbers = torch.cat([dense[:, None, :], self.pool_dense[negatives]], dim=1)
        return torch.cat([embedded, numbers], dim=2)


class Cosine(nn.Module):
    """The cosine of a user with each of its candidates."""

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return [n, candidates] from [n, w] and [n, candidates, w]."""
        return functional.cosine_similarity(users[:, None, :], items, dim=2)


def matchnet(
    schema: Schema,
    *,
    items: ItemPool,
    seed: int = 0,
    loss: str = RECIPE.loss,
    num_user_slots: int = 12,
    num_rows: int = 1_000_001,
    width: int = 10,
    hidden: Sequence[int] = (400, 400, 50),
    num_negatives: int = 20,
    dropout: float = 0.0,
) -> list[Block]:
    """Return the blocks: user tower, negatives, item tower over 1 + negatives items, cosine, loss.

    The first `num_user_slots` slots are the user's; the other slots and all numbers are the item's.
    """
    slots = schema.num_slots
    item_slots = slots - num_user_slots
    if items.ids.shape[1] != item_slots or items.dense.shape[1] != schema.num_dense:
        raise ModelError(
            f"items of {items.ids.shape[1]} slots and {items.dense.shape[1]} numbers do not fit data with {item_slots} "
            f"item slots and {schema.num_dense} numbers",
            hint="take the items from the same data, and set num_user_slots to the slots that describe the user",
        )
    user_table = SlotEmbedding(num_rows=num_rows, width=width, num_slots=slots, last_slot=num_user_slots)
    item_table = ItemEmbedding(items.ids, num_rows=num_rows, width=width, num_slots=slots, first_slot=num_user_slots)
    negatives = Negatives(num_items=items.num_items, num_negatives=num_negatives, seed=seed)
    tower = {"last_relu": False, "dropout": dropout, "seed": seed}
    user_tower = _tower([num_user_slots * width, *hidden], "user_", **tower)
    item_tower = _tower([item_slots * width + schema.num_dense, *hidden], "item_", **tower)
    return [
        Block(name="user_embedding", kind="embedding", module=user_table, after=(), reads=("ids", "offsets")),
        *user_tower,
        Block(name="negatives", kind="other", module=negatives, after=(), reads=("sample_ids",)),
        Block(name="item_embedding", kind="embedding", module=item_table, reads=("ids", "offsets")),
        Block(
            name="item_concat",
            kind="concat",
            module=ItemNumbers(items.dense),
            after=("item_embedding", "negatives"),
            reads=("dense",),
        ),
        *item_tower,
        Block(name="cosine", kind="other", module=Cosine(), after=(user_tower[-1].name, item_tower[-1].name)),
        loss_block(loss, name="loss"),
    ]


def _tower(widths: Sequence[int], prefix: str, **options: object) -> list[Block]:
    return fc_tower(widths, prefix=prefix, **options)  # type: ignore[arg-type]


def item_scores(graph: LayerGraph, batch: Batch) -> Tensor:
    """Return the cosine of every sample's user with every item of the pool: [n, items], without gradients."""
    item_table, numbers = graph.layers.item_embedding, graph.layers.item_concat
    if not isinstance(item_table, ItemEmbedding) or not isinstance(numbers, ItemNumbers):
        raise ModelError("this model has no items to rank", hint="recall is for `matchnet` and `nce`")
    user_end = max(p for p, block in enumerate(graph.blocks) if block.name.startswith("user_"))
    item_start = graph.position("item_concat") + 1
    item_end = max(p for p, block in enumerate(graph.blocks) if block.name.startswith("item_"))
    with torch.no_grad():
        user_name, item_name = graph.blocks[user_end].name, graph.blocks[item_end].name
        users = graph.run(batch, last=user_end, keep=(user_name,))[user_name]
        pool = {"item_concat": torch.cat([item_table.embed_pool(), numbers.pool_dense], dim=1)}
        items = graph.run(batch, pool, first=item_start, last=item_end, keep=(item_name,))[item_name]
        return functional.normalize(users, dim=1) @ functional.normalize(items, dim=1).T
