"""Embedding tables: from the ids of a batch to vectors.

This is the seam where a table that spans GPU, host memory and disk can stand in: it takes the same `ids` and `offsets`
and gives the same tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.models.errors import ModelError

_ROWS_ELSEWHERE: ContextVar[bool] = ContextVar("rows_elsewhere", default=False)


class RowSource(Protocol):
    """Rows that lie elsewhere, such as on parameter servers, and are fetched as they are looked up."""

    def look_up(self, keys: Tensor, offsets: Tensor, mode: str) -> Tensor:
        """Return one pooled vector a bag; gradients find their way back to the rows."""
        ...

    def rows(self, keys: Tensor) -> Tensor:
        """Return one vector a key, whatever the shape of `keys`."""
        ...


@contextmanager
def rows_elsewhere() -> Iterator[None]:
    """Build models whose tables take no memory here: each needs a `row_source` before it is used."""
    token = _ROWS_ELSEWHERE.set(True)
    try:
        yield
    finally:
        _ROWS_ELSEWHERE.reset(token)


class SlotEmbedding(nn.Module):
    """One table of `num_rows` x `width` for the slots `first_slot` to `last_slot` (exclusive) of `num_slots`.

    An id uses row `id modulo num_rows`; the ids of a multi-valued slot are added up (or averaged). Where the ids are
    below `num_rows` no two share a row. Gradients are sparse: only touched rows are updated.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        width: int,
        num_slots: int,
        first_slot: int = 0,
        last_slot: int | None = None,
        mode: str = "sum",
    ) -> None:
        """Make the table; its values come from `initialise`."""
        super().__init__()
        last_slot = num_slots if last_slot is None else last_slot
        if not num_slots:
            raise ModelError(
                "the model looks up categories, and these data have no slots",
                hint="name columns of text or whole numbers: slots=[...] (data_options, --data-option slots=a,b), or "
                "choose a model without tables",
            )
        if min(num_rows, width) < 1 or not 0 <= first_slot < last_slot <= num_slots:
            raise ModelError(
                f"an embedding has {num_rows} rows of {width} for slots {first_slot} to {last_slot} of {num_slots}",
                hint="rows and width are at least 1, and the slots lie within those of the data",
            )
        if mode not in ("sum", "mean"):
            raise ModelError(f"an embedding pools by `{mode}`", hint="choose `sum` or `mean`")
        self.num_rows, self.width, self.mode = num_rows, width, mode
        self.num_slots, self.first_slot, self.last_slot = num_slots, first_slot, last_slot
        self.row_source: RowSource | None = None
        place = "meta" if _ROWS_ELSEWHERE.get() else None
        self.weight = nn.Parameter(torch.empty(num_rows, width, device=place))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the table with small uniform numbers: with `width` w, up to 1 / sqrt(w) / 3 either way."""
        nn.init.uniform_(self.weight, -1.0 / 3.0 / self.width**0.5, 1.0 / 3.0 / self.width**0.5)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return the pooled vectors of each sample's slots side by side: float [n, slots * width]."""
        ids, offsets = select_slots(ids, offsets, self.num_slots, self.first_slot, self.last_slot)
        rows = self.look_up(ids, offsets)
        return rows.view(-1, (self.last_slot - self.first_slot) * self.width)

    def look_up(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return one pooled vector a bag: float [len(offsets) - 1, width]."""
        if self.row_source is not None:
            return self.row_source.look_up(ids % self.num_rows, offsets, self.mode)
        return functional.embedding_bag(
            ids % self.num_rows, self.weight, offsets, mode=self.mode, sparse=True, include_last_offset=True
        )

    def rows(self, ids: Tensor) -> Tensor:
        """Return one vector an id, whatever the shape of `ids`."""
        if self.row_source is not None:
            return self.row_source.rows(ids % self.num_rows)
        return functional.embedding(ids % self.num_rows, self.weight, sparse=True)

    def extra_repr(self) -> str:
        """Return the sizes, for `print(model)`."""
        return f"num_rows={self.num_rows}, width={self.width}, slots={self.first_slot}..{self.last_slot - 1}"


def select_slots(
    ids: Tensor, offsets: Tensor, num_slots: int, first_slot: int, last_slot: int
) -> tuple[Tensor, Tensor]:
    """Return ids and offsets of some slots alone, sample by sample."""
    if (offsets.shape[0] - 1) % num_slots:
        raise ModelError(
            f"a batch with {offsets.shape[0] - 1} bags of ids does not have {num_slots} slots a sample",
            hint="build the model for the data's schema: load_model(..., schema=source.schema)",
        )
    if first_slot == 0 and last_slot == num_slots:
        return ids, offsets
    lengths = offsets.diff().view(-1, num_slots)[:, first_slot:last_slot].reshape(-1)
    begins = offsets[:-1].view(-1, num_slots)[:, first_slot:last_slot].reshape(-1)
    chosen = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=offsets.device)
    torch.cumsum(lengths, 0, out=chosen[1:])
    shifts = torch.repeat_interleave(begins - chosen[:-1], lengths)
    return ids[shifts + torch.arange(shifts.shape[0], device=ids.device)], chosen
