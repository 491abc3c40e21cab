"""Samples into a Parquet file, to look at or to read back with other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as arrow_parquet

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.schema import Schema
from dovetail.data.source import Source

ROWS_PER_GROUP = 65_536


def write_parquet(source: Source, path: str | Path, *, num_samples: int) -> int:
    """Write the first `num_samples` samples and return how many there were: `label`, numbers, then slots.

    Ids are whole numbers, and a multi-valued slot is a list of them.
    """
    end = num_samples if source.num_samples is None else min(num_samples, source.num_samples)
    written = 0
    try:
        with arrow_parquet.ParquetWriter(str(path), _arrow_schema(source.schema)) as writer:
            for first in range(0, end, ROWS_PER_GROUP):
                batch = source.read(first, min(first + ROWS_PER_GROUP, end))
                writer.write_table(_table(batch, source.schema))
                written += batch.num_samples
    except OSError as problem:
        raise DataError(
            f"`{path}` cannot be written: {problem}", hint="check the folder and the room on its disk"
        ) from None
    return written


def _arrow_schema(schema: Schema) -> pa.Schema:
    slots = [pa.field(slot.name, pa.list_(pa.int64()) if slot.multi_valued else pa.int64()) for slot in schema.slots]
    return pa.schema([pa.field("label", pa.int8()), *(pa.field(name, pa.float32()) for name in schema.dense), *slots])


def _table(batch: Batch, schema: Schema) -> pa.Table:
    offsets, ids, dense = batch.offsets.numpy(), batch.ids.numpy(), batch.dense.numpy()
    lengths = np.diff(offsets).reshape(batch.num_samples, schema.num_slots)
    columns = [pa.array(batch.labels.numpy().astype(np.int8))]
    columns += [pa.array(np.ascontiguousarray(dense[:, number])) for number in range(schema.num_dense)]
    for position, slot in enumerate(schema.slots):
        counts = lengths[:, position]
        begins = offsets[:-1].reshape(batch.num_samples, schema.num_slots)[:, position]
        own = np.concatenate([[0], np.cumsum(counts)])
        values = pa.array(ids[np.repeat(begins - own[:-1], counts) + np.arange(own[-1])])
        if slot.multi_valued:
            columns.append(pa.ListArray.from_arrays(pa.array(own, type=pa.int32()), values))
        else:
            columns.append(values)
    return pa.Table.from_arrays(columns, schema=_arrow_schema(schema))
