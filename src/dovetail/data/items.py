"""Items that can be shown to users."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPool:
    """All items there are: what a matching model draws its negatives from, and ranks."""

    ids: Tensor
    """int64 [items, slots]: one id a slot."""
    dense: Tensor
    """float32 [items, numbers]."""

    def __post_init__(self) -> None:
        """Refuse a pool that is empty or whose parts do not match."""
        if self.ids.dim() != 2 or self.dense.dim() != 2 or not 0 < self.ids.shape[0] == self.dense.shape[0]:
            raise DataError(
                f"an item pool has ids {tuple(self.ids.shape)} and numbers {tuple(self.dense.shape)}",
                hint="give both one row an item, and at least one item",
            )

    @property
    def num_items(self) -> int:
        """How many items there are."""
        return self.ids.shape[0]


def items_of(batch: Batch, *, first_slot: int) -> ItemPool:
    """Return the distinct items among samples: their slots from `first_slot` on, and their numbers.

    Of a multi-valued slot the first id counts; a slot without ids has id 0.
    """
    if not 0 <= first_slot < batch.num_slots:
        raise DataError(
            f"samples of {batch.num_slots} slots have no item slots from slot {first_slot} on",
            hint="first_slot is how many slots describe the user",
        )
    begins = batch.offsets[:-1].view(batch.num_samples, -1)[:, first_slot:]
    lengths = batch.offsets.diff().view(batch.num_samples, -1)[:, first_slot:]
    padded = torch.cat([batch.ids, batch.ids.new_zeros(1)])
    ids = torch.where(lengths > 0, padded[begins], 0)
    _, group = torch.unique(ids, dim=0, return_inverse=True)
    first_of = torch.full((int(group.max()) + 1,), batch.num_samples).scatter_reduce(
        0, group, torch.arange(batch.num_samples), reduce="amin"
    )
    chosen = first_of.sort().values
    return ItemPool(ids=ids[chosen], dense=batch.dense[chosen])
