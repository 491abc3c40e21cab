"""PyTorch's `Dataset`, `IterableDataset` and `DataLoader` as samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from dovetail.data.batch import FIELDS, Batch, concatenate
from dovetail.data.errors import DataError
from dovetail.data.schema import Field, Schema, Slot

Collate = Callable[[list[Any]], Any]
LABELS = ("label", "labels", "target", "targets", "y")
"""What a sample's label is called where samples have names."""
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
        if type(self._dataset) is TensorDataset and self._collate is default_collate:
            put_together: Any = [tensor[first:last] for tensor in self._dataset.tensors]
        elif callable(getattr(self._dataset, "__getitems__", None)):
            put_together = self._collate(list(self._dataset.__getitems__(list(range(first, last)))))
        else:
            put_together = self._collate([self._dataset[number] for number in range(first, last)])
        return batch_of(put_together, first, last - first, self._names)


class IterableSource:
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
        self._batch = concatenate(batches)
        self.num_samples = total
        self.schema = schema_of(self._batch)

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`."""
        return self._batch.slice(min(first, self.num_samples), min(last, self.num_samples))


def dataset_source(
    data: Any, *, collate: Collate | None = None, names: Sequence[str] | None = None
) -> DatasetSource | IterableSource:
    """Return a `DataLoader`, `Dataset`, `IterableDataset`, or anything alike as samples.

    Of a `DataLoader` the data set and the `collate_fn` count: batch size and order are the run's.
    """
    if isinstance(data, DataLoader):
        collate = data.collate_fn if collate is None else collate
        data = data.dataset
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
        offsets=torch.arange(0, ids.numel() + 1, max(1, ids.shape[1]))[: num_samples * ids.shape[1] + 1]
        if ids.shape[1]
        else torch.zeros(1, dtype=torch.int64),
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
