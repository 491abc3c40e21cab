"""What some data are like, in a few facts."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.data.batch import concatenate
from dovetail.data.clicks import Clicks, Matches
from dovetail.data.files import FileSource
from dovetail.data.source import Source

_BLOCK = 65_536


def summarise(source: Source, *, num_samples: int) -> dict[str, Any]:
    """Return facts about the first `num_samples` samples, and the best reachable result where the truth is known."""
    end = num_samples if source.num_samples is None else min(num_samples, source.num_samples)
    blocks = [source.read(first, min(first + _BLOCK, end)) for first in range(0, end, _BLOCK)]
    batch = concatenate(blocks)
    facts: dict[str, Any] = {
        "samples": source.num_samples if source.num_samples is not None else "no end",
        "looked_at": batch.num_samples,
        "numbers": source.schema.num_dense,
        "slots": source.schema.num_slots,
        "multi_valued_slots": sum(slot.multi_valued for slot in source.schema.slots),
        "ids_per_sample": batch.ids.shape[0] / max(1, batch.num_samples),
        "distinct_ids": int(torch.unique(batch.ids).shape[0]),
        "click_rate": float(batch.labels.mean()) if batch.num_samples else 0.0,
        "bytes_per_sample": batch.num_bytes / max(1, batch.num_samples),
    }
    if isinstance(source, FileSource):
        facts["broken_rows"] = source.bad_rows.summary()
    if isinstance(source, Clicks):
        facts["best_auc"] = source.best_auc(end)
    if isinstance(source, Matches):
        facts["best_recall_at_10"] = source.best_recall(10)
        facts["chance_recall_at_10"] = 10 / source.num_items
    return facts
