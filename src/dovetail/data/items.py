"""Items that can be shown to users."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

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
