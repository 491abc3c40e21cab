"""Ids that a table has no row for: refused with the column and the id, as PyTorch refuses them without."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.data.schema import Schema
from dovetail.runtime.errors import TrainingError


def check_ids(ids: Tensor, num_rows: int, batch: Batch | None, schema: Schema | None) -> None:
    """Refuse ids outside of 0 to `num_rows` - 1; the batch, where it is known, tells which column one came from."""
    if not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= num_rows:
        key = low if low < 0 else high
        column = _column_of(key, batch, schema) if batch is not None and schema is not None else None
        place = f"column `{column}` has the id {key}" if column is not None else f"an id is {key}"
        raise TrainingError(
            f"{place}, and the table that looks it up has rows 0 to {num_rows - 1}",
            hint=f"hash the column into the table's size where the data are read: hash_into = {num_rows}; "
            "or look ids up in a dovetail.models.SlotEmbedding, which takes any",
        )


def _column_of(key: int, batch: Batch, schema: Schema) -> str | None:
    """Return the slot of a batch that an id is in; None where the model made it up."""
    found = np.flatnonzero(batch.ids.cpu().numpy() == key)
    if not len(found) or not schema.num_slots:
        return None
    bag = int(np.searchsorted(batch.offsets.cpu().numpy(), found[0], side="right")) - 1
    return schema.slots[bag % schema.num_slots].name
