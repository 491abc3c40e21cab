"""Whatever people keep samples in, as a source: tables in memory, and PyTorch's datasets and loaders."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from dovetail.data.batch import FIELDS, Batch, concatenate
from dovetail.data.errors import BadRow, BadRows, DataError
from dovetail.data.files.choosing import Names, Said, chosen_columns, described, kind_in_memory
from dovetail.data.files.columns import SEPARATOR, Columns
from dovetail.data.files.features import settled_features
from dovetail.data.files.formats import is_path
from dovetail.data.files.tables import LABELS
from dovetail.data.load import load_data, tell_once
from dovetail.data.memory import InMemory
from dovetail.data.schema import Field, Schema, Slot
from dovetail.data.source import Source
from dovetail.data.transforms import hashed
from dovetail.errors import did_you_mean
from dovetail.spec.run import RunData

Collate = Callable[[list[Any]], Any]
CHUNK = 1024
"""Samples of an iterable that are put together at once."""
MOST_BYTES = 4 << 30
"""How much of an iterable is kept in memory."""


class DatasetSource:
    """A map-style data set, read by number, its samples put together by `collate`.

    A sample that is a mapping names its fields; one that is a sequence has its inputs first and its label last, and
    `names` says what the inputs are called. Inputs called `dense`, `ids` (one id a slot) and `weights` (how much each
    sample counts) become those of the batch.
    """

    def __init__(self, dataset: Any, *, collate: Collate | None = None, names: Sequence[str] | None = None) -> None:
        """Look at the first sample."""
        self._dataset, self._names = dataset, tuple(names) if names is not None else None
        self._collate: Collate = default_collate if collate is None else collate
        self.num_samples = len(dataset)
        if not self.num_samples:
            raise DataError(f"the {type(dataset).__name__} is empty", hint="give it at least one sample")
        self.schema = schema_of(self.read(0, 1))

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`."""
        last = min(last, self.num_samples)
        if not 0 <= first < last:
            return self.read(0, 1).slice(0, 0)
        if callable(getattr(self._dataset, "__getitems__", None)):
            put_together: Any = self._collate(list(self._dataset.__getitems__(list(range(first, last)))))
        else:
            put_together = self._collate([self._dataset[number] for number in range(first, last)])
        return batch_of(put_together, first, last - first, self._names)

    reads_serially = True
    """One thread reads: a data set of someone's own need not stand several."""


class TensorSource(InMemory):
    """The tensors of a `TensorDataset`, where they lie."""

    def __init__(self, tensors: Sequence[Tensor], *, names: Sequence[str] | None = None) -> None:
        """Keep them; those of other types than batches have are copied once."""
        total = len(tensors[0])
        if not total:
            raise DataError("the TensorDataset is empty", hint="give it at least one sample")
        batch = batch_of(list(tensors), 0, total, None if names is None else tuple(names))
        super().__init__(batch, schema_of(batch), total)


class IterableSource(InMemory):
    """An iterable of samples, which is gone through once and kept in memory."""

    def __init__(
        self, samples: Iterable[Any], *, collate: Collate | None = None, names: Sequence[str] | None = None
    ) -> None:
        """Go through it."""
        put_together: Collate = default_collate if collate is None else collate
        chunk: list[Any] = []
        batches: list[Batch] = []
        total = num_bytes = 0

        def close() -> None:
            nonlocal total, num_bytes
            batch = batch_of(put_together(chunk), total, len(chunk), None if names is None else tuple(names))
            batches.append(batch)
            total += len(chunk)
            num_bytes += batch.num_bytes
            chunk.clear()
            if num_bytes > MOST_BYTES:
                raise DataError(
                    f"an iterable of more than {MOST_BYTES >> 30} GiB is more than memory is used for",
                    hint="give a Dataset with __len__ and __getitem__, or write the samples to Parquet files",
                )

        for sample in samples:
            chunk.append(sample)
            if len(chunk) == CHUNK:
                close()
        if chunk:
            close()
        if not batches:
            raise DataError(f"the {type(samples).__name__} is empty", hint="give it at least one sample")
        super().__init__(batch := concatenate(batches), schema_of(batch), total)


def dataset_source(
    data: Any, *, collate: Collate | None = None, names: Sequence[str] | None = None
) -> DatasetSource | TensorSource | IterableSource:
    """Return a `DataLoader`, `Dataset`, `IterableDataset`, or anything alike as samples.

    Of a `DataLoader` the data set and the `collate_fn` count: batch size and order are the run's.
    """
    if isinstance(data, DataLoader):
        collate = data.collate_fn if collate is None else collate
        data = data.dataset
    if type(data) is TensorDataset and collate in (None, default_collate):
        return TensorSource(data.tensors, names=names)
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return IterableSource(data, collate=collate, names=names)
    return DatasetSource(data, collate=collate, names=names)


def batch_of(put_together: Any, first: int, num_samples: int, names: tuple[str, ...] | None) -> Batch:
    """Return what a collate function made of samples `first` and on as a batch."""
    inputs, labels = _parted(put_together, names)
    fields = {name: _tensor(value, name, num_samples) for name, value in inputs.items()}
    target = torch.zeros(num_samples) if labels is None else _tensor(labels, "label", num_samples)
    dense = fields.pop("dense", torch.zeros(num_samples, 0))
    weights = fields.pop("weights", None)
    ids = fields.pop("ids", torch.zeros(num_samples, 0, dtype=torch.int64))
    if dense.dim() != 2 or ids.dim() != 2:
        raise DataError(
            f"`dense` is {list(dense.shape)} and `ids` {list(ids.shape)}",
            hint="both have one row a sample; give inputs of other shapes another name",
        )
    if wrong := sorted(set(fields) & set(FIELDS)):
        raise DataError(f"a sample has an input called `{wrong[0]}`", hint="give it another name")
    return Batch(
        sample_ids=torch.arange(first, first + num_samples),
        dense=dense.float(),
        ids=ids.long().reshape(-1),
        offsets=torch.arange(ids.numel() + 1),
        labels=target.float(),
        weights=None if weights is None else weights.float(),
        extra={name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in fields.items()},
    )


def schema_of(batch: Batch) -> Schema:
    """Return what a sample consists of, from some."""
    return Schema(
        dense=tuple(f"x{number}" for number in range(batch.dense.shape[1])),
        slots=tuple(Slot(name=f"slot{number}") for number in range(batch.num_slots)),
        fields=tuple(
            Field(name=name, shape=tuple(tensor.shape[1:]), dtype=str(tensor.dtype).removeprefix("torch."))
            for name, tensor in batch.extra.items()
        ),
        label_shape=tuple(batch.labels.shape[1:]),
    )


def _parted(put_together: Any, names: tuple[str, ...] | None) -> tuple[dict[str, Any], Any]:
    """Return the inputs by name, and the label."""
    if isinstance(put_together, Mapping):
        inputs = {str(name): value for name, value in put_together.items()}
        label = next((name for name in LABELS if name in inputs), None)
        return inputs, None if label is None else inputs.pop(label)
    parts = list(put_together) if isinstance(put_together, list | tuple) else [put_together]
    *values, labels = parts if len(parts) > 1 else [parts[0], None]
    if names is None:
        names = ("dense",) if len(values) == 1 and _is_vector(values[0]) else ("x",)
    if len(names) < len(values):
        raise DataError(
            f"a sample has {len(values)} inputs and a label, and {len(names)} names are known: {', '.join(names)}",
            hint='say what the inputs are called: data_options={"names": [...]}; or have samples be dictionaries',
        )
    return dict(zip(names, values, strict=False)), labels


def _is_vector(value: Any) -> bool:
    """Say whether an input is a row of numbers a sample."""
    return isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point()


def _tensor(value: Any, name: str, num_samples: int) -> Tensor:
    """Return a field as a tensor with one row a sample."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise DataError(
            f"`{name}` of a sample is no tensor: {problem}", hint="have the data set, or its collate, return tensors"
        ) from None
    if tensor.dim() < 1 or tensor.shape[0] != num_samples:
        raise DataError(
            f"`{name}` of {num_samples} samples has shape {list(tensor.shape)}", hint="return one row a sample"
        )
    return tensor


class TableSource(InMemory):
    """The rows of an Arrow table; broken ones keep their number and are left out."""

    def __init__(self, table: pa.Table, columns: Columns, *, max_bad_rows: int = 0) -> None:
        """Keep the table, whose rows are looked at once."""
        columns.check(table.column_names, where="the table")
        self.columns = columns
        batch, bad = columns.samples(table)
        self.bad_rows = BadRows()
        self.bad_rows.add(BadRow(file="the table", row=row + 1, reason=bad[row]) for row in sorted(bad))
        self.bad_rows.check(max_bad_rows)
        super().__init__(batch, _schema(columns.schema, batch), table.num_rows)


def table_source(
    table: pa.Table,
    *,
    label: Names | None = None,
    dense: Names | None = None,
    slots: Names | None = None,
    multi_valued: Names | None = None,
    fields: Names | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    separator: str = SEPARATOR,
    max_bad_rows: int = 0,
    weight: str | None = None,
    hash_into: int | Mapping[str, int] | None = None,
    needs_label: bool = True,
    whole: Names | None = None,
    ignore: Names | None = None,
    transforms: Names | None = None,
) -> Source:
    """Return a table as samples.

    Columns that are not named are taken for what they look like: the label is the column `label`, `labels`, `target`,
    `targets` or `y`; numbers are dense; text is a slot, lists of text a multi-valued one; lists of numbers are further
    fields. As soon as one of `dense`, `slots` and `fields` is given, only the columns named there are read, unless
    `ignore` says which are not. `transforms` make columns of others, as in files.
    """
    if label is None:
        label = next((name for name in LABELS if name in table.column_names), None)
        if label is None and needs_label:
            raise DataError(
                f"none of the columns {', '.join(table.column_names)} is called `label`",
                hint='say which one is: data_options={"label": ...}',
            )
    said = Said(
        label=label,
        dense=dense,
        slots=slots,
        multi_valued=multi_valued,
        fields=fields,
        shapes=shapes,
        separator=separator,
        weight=weight,
        whole=whole,
        ignore=ignore,
        transforms=transforms,
    )
    columns = chosen_columns(said, table.schema, where="the table", kind_of=kind_in_memory)
    if needs_label and not said.is_whole:
        tell_once(described(columns, "the table", "in memory"))
    settled = settled_features(columns.transforms, lambda names: [table.select(list(names))])
    source = TableSource(table, replace(columns, transforms=settled), max_bad_rows=max_bad_rows)
    return source if hash_into is None else hashed(source, hash_into)


def table_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some options of data that tables in memory take too."""
    known = tuple(inspect.signature(table_source).parameters)[1:]
    return {name: value for name, value in options.items() if name in known}


def as_paths(data: Any) -> list[str]:
    """Return the paths that a path, or a list of them, means; none for anything else."""
    several = list(data) if isinstance(data, list | tuple) else [data]
    are_paths = all(isinstance(each, os.PathLike) or (isinstance(each, str) and is_path(each)) for each in several)
    return [os.fspath(each) for each in several] if several and are_paths else []


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


def as_source(data: Any, **options: Any) -> Source:
    """Return samples that someone has as a source.

    Paths, and lists of them, are files of a format that is found out, with the options of `load_data`. Sources are
    taken as they are; `options` are those of `table_source` for pandas, Polars and Arrow tables and Hugging
    Face data sets, and those of `dataset_source` for PyTorch's data sets and loaders, and for anything alike.
    """
    if paths := as_paths(data):
        return load_data(RunData().name, path=paths, **options)
    if isinstance(data, Source):
        _refuse(options, (), data)
        return data
    table = as_table(data)
    maker: Any = table_source if table is not None else dataset_source
    if table is None and not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise DataError(
            f"a {type(data).__name__} is no source of samples",
            hint="give a Dataset, a DataLoader, a table of pandas, Polars or Arrow, or an object with `schema`, "
            "`num_samples` and `read(first, last)`",
        )
    if isinstance(data, Mapping | str | bytes):
        raise DataError(
            f"a {type(data).__name__} is no source of samples", hint="give a list of samples, or a table with columns"
        )
    _refuse(options, tuple(inspect.signature(maker).parameters)[1:], data)
    source: Source = maker(data if table is None else table, **options)
    return source


def _refuse(options: Mapping[str, Any], known: tuple[str, ...], data: Any) -> None:
    """Refuse options that nothing is done with."""
    for option in options:
        if option not in known:
            raise DataError(f"a {type(data).__name__} has no option `{option}`", hint=did_you_mean(option, known))
