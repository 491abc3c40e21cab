"""Tables in memory as samples: Arrow, pandas, Polars, Hugging Face `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

from dovetail.data.bad_rows import BadRow, BadRows
from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.files.columns import Columns
from dovetail.data.files.numbers import is_list
from dovetail.data.hash_into import hashed
from dovetail.data.schema import Field, Schema
from dovetail.data.source import Source


class TableSource:
    """The rows of an Arrow table; broken ones keep their number and are left out."""

    def __init__(self, table: pa.Table, columns: Columns, *, max_bad_rows: int = 0) -> None:
        """Keep the table, whose rows are looked at once."""
        columns.check(table.column_names, where="the table")
        self.columns = columns
        self._batch, bad = columns.samples(table)
        self.num_samples = table.num_rows
        self.bad_rows = BadRows()
        self.bad_rows.add(BadRow(file="the table", row=row + 1, reason=bad[row]) for row in sorted(bad))
        self.bad_rows.check(max_bad_rows)
        self.schema = _schema(columns.schema, self._batch)

    def read(self, first: int, last: int) -> Batch:
        """Return rows `first` up to but not including `last`, broken ones left out."""
        if not 0 <= first <= last:
            raise DataError(f"samples {first} to {last} were asked for", hint="ask for 0 <= first <= last")
        if self._batch.num_samples == self.num_samples:
            return self._batch.slice(min(first, self.num_samples), min(last, self.num_samples))
        begin, end = torch.searchsorted(self._batch.sample_ids, torch.tensor([first, last])).tolist()
        return self._batch.slice(begin, end)


def table_source(
    table: pa.Table,
    *,
    label: str | Sequence[str] | None = None,
    dense: Sequence[str] | None = None,
    slots: Sequence[str] | None = None,
    multi_valued: Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    separator: str = "|",
    max_bad_rows: int = 0,
    weight: str | None = None,
    hash_into: int | Mapping[str, int] | None = None,
    needs_label: bool = True,
) -> Source:
    """Return a table as samples.

    Columns that are not named are taken for what they look like: the label is the column `label`, `labels`, `target` or
    `y`; numbers are dense; text is a slot, lists of text a multi-valued one; lists of numbers are further fields. As
    soon as one of `dense`, `slots` and `fields` is given, only the columns named there are read.
    """
    if label is None:
        label = next((name for name in ("label", "labels", "target", "y") if name in table.column_names), None)
        if label is None and needs_label:
            raise DataError(
                f"none of the columns {', '.join(table.column_names)} is called `label`",
                hint='say which one is: data_options={"label": ...}',
            )
    own_labels = (label,) if isinstance(label, str) else tuple(label or ())
    if dense is None and slots is None and fields is None:
        dense, slots, many, fields = _looks_like(table, (*own_labels, *(() if weight is None else (weight,))))
        multi_valued = many if multi_valued is None else multi_valued
    columns = Columns(
        label=label if isinstance(label, str) else own_labels or None,
        dense=tuple(dense or ()),
        slots=tuple(slots or ()),
        multi_valued=tuple(multi_valued or ()),
        separator=separator,
        weight=weight,
        fields=tuple(fields or ()),
        shapes=tuple((name, tuple(shape)) for name, shape in (shapes or {}).items()),
    )
    source = TableSource(table, columns, max_bad_rows=max_bad_rows)
    return source if hash_into is None else hashed(source, hash_into)


def as_table(data: Any) -> pa.Table | None:
    """Return pandas and Polars frames, Arrow tables and Hugging Face data sets as an Arrow table; None for others."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    root = type(data).__module__.partition(".")[0]
    if root == "pandas" and type(data).__name__ == "DataFrame":
        return pa.Table.from_pandas(data, preserve_index=False)
    if root == "polars" and type(data).__name__ in ("DataFrame", "LazyFrame"):
        frame = data.collect() if type(data).__name__ == "LazyFrame" else data
        return _plain_types(frame.to_arrow())
    if root == "datasets" and type(data).__name__ == "Dataset" and data.format["type"] is None:
        return data.with_format("arrow")[:]
    return None


def _plain_types(table: pa.Table) -> pa.Table:
    """Return a table whose text is of the kind that is read everywhere."""
    fields = [
        pa.field(field.name, pa.large_string()) if str(field.type) == "string_view" else field for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _looks_like(table: pa.Table, known: tuple[str, ...]) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return which columns but the `known` look like numbers, slots, multi-valued ones among them, and fields."""
    dense: list[str] = []
    slots: list[str] = []
    many: list[str] = []
    fields: list[str] = []
    for column in table.schema:
        kind = column.type
        if column.name in known:
            continue
        if is_list(kind):
            inner = kind.value_type
            is_text = pa.types.is_string(inner) or pa.types.is_large_string(inner)
            (many if is_text else fields).append(column.name)
            slots += [column.name] if is_text else []
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            dense.append(column.name)
        else:
            slots.append(column.name)
    return dense, slots, many, fields


def _schema(schema: Schema, batch: Batch) -> Schema:
    """Return a schema with the shapes and kinds that samples have."""
    fields = tuple(
        Field(
            name=name,
            shape=tuple(tensor.shape[1:]),
            dtype=str(tensor.dtype).removeprefix("torch."),
        )
        for name, tensor in batch.extra.items()
    )
    return Schema(dense=schema.dense, slots=schema.slots, fields=fields, label_shape=tuple(batch.labels.shape[1:]))
