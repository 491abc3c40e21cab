"""Samples as plain arrays, in the narrowest types that hold them: what a cache keeps, and batches are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from dovetail.data.batch import Batch, padded_cat
from dovetail.data.errors import DataError

Array = NDArray[np.generic]
IDS_TYPES = (np.uint8, np.uint16, np.int32)
"""What ids are kept in where they fit, the narrowest first; else they are int64."""
MOST_OFFSET = np.iinfo(np.uint32).max


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedSamples:
    """Rows `first` and on of some data; broken ones are left out, and keep their number.

    Ids lie as in a `Batch`. What follows from something else is absent: offsets where every slot has one id, row
    numbers where no row is broken.
    """

    num_rows: int
    """Broken ones included."""
    num_slots: int
    ids: Array
    offsets: Array | None
    dense: NDArray[np.float32]
    labels: Array
    """uint8 where that is exact, else float32."""
    weights: NDArray[np.float32] | None = None
    rows: NDArray[np.int32] | None = None
    """The rows that are not broken, from 0."""
    sample_ids: NDArray[np.int64] | None = None
    """Where they are not the numbers of rows."""
    extra: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Work out where the compiled pass finds everything."""
        places = None
        if self.rows is not None:
            places = np.full(self.num_rows, -1, dtype=np.int32)
            places[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        object.__setattr__(self, "_places", places)
        columns = (self.ids, self.offsets, self.dense, self.labels, self.weights, self.sample_ids, places)
        facts = [self.num_rows, self.num_slots]
        for column in columns:
            facts += [0, 0] if column is None else [column.ctypes.data, column.itemsize]
        object.__setattr__(self, "addresses", np.array(facts, dtype=np.int64))

    addresses: NDArray[np.int64] = field(init=False, repr=False)
    """Rows, slots, and of each column where it lies (0 where absent) and the bytes of a number; see `assembling`."""
    _places: NDArray[np.int32] | None = field(init=False, repr=False)

    @property
    def num_samples(self) -> int:
        """How many rows are not broken."""
        return len(self.dense)

    @property
    def shape(self) -> tuple[object, ...]:
        """What samples of one data set have in common."""
        has_weights = self.weights is not None
        return self.num_slots, self.dense.shape[1], self.labels.shape[1:], has_weights, tuple(self.extra)

    @property
    def num_bytes(self) -> int:
        """What the arrays take."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """Return all arrays that there are by name; further fields as `field:name`."""
        own = {name: getattr(self, name) for name in ("ids", "offsets", "dense", "labels", "weights", "rows")}
        return {name: array for name, array in own.items() if array is not None} | {
            f"field:{name}": array for name, array in self.extra.items()
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], *, num_rows: int, num_slots: int) -> PackedSamples:
        """Return samples from what `arrays` returned; the arrays are not copied."""
        own = {name: array for name, array in arrays.items() if not name.startswith("field:")}
        extra = {name.removeprefix("field:"): array for name, array in arrays.items() if name.startswith("field:")}
        return cls(num_rows=num_rows, num_slots=num_slots, extra=extra, **{"offsets": None, **own})  # type: ignore[arg-type]


def packed(batch: Batch, *, num_rows: int, num_slots: int) -> PackedSamples:
    """Return a batch whose sample ids are row numbers, below `num_rows`, in the narrowest types that hold it."""
    offsets = batch.offsets.numpy()
    ids = batch.ids.numpy()
    rows = None
    if batch.num_samples < num_rows:
        rows = batch.sample_ids.numpy().astype(np.int32)
    return PackedSamples(
        num_rows=num_rows,
        num_slots=num_slots,
        ids=np.ascontiguousarray(ids, dtype=_ids_type(ids)),
        offsets=None if _is_even(offsets) else offsets.astype(np.uint32 if offsets[-1] <= MOST_OFFSET else np.int64),
        dense=np.ascontiguousarray(batch.dense.numpy()),
        labels=_narrow_labels(batch.labels.numpy()),
        weights=None if batch.weights is None else np.ascontiguousarray(batch.weights.numpy()),
        rows=rows,
        extra={name: np.ascontiguousarray(tensor.numpy()) for name, tensor in batch.extra.items()},
    )


def viewed(batch: Batch, *, first: int, last: int, num_slots: int) -> PackedSamples:
    """Return samples `first` up to but not including `last` of a source as they lie in memory, nothing copied."""
    offsets, numbers = batch.offsets.numpy(), batch.sample_ids.numpy()
    rows, sample_ids = None, None
    if batch.num_samples < last - first:
        rows = (numbers - first).astype(np.int32)
    elif not np.array_equal(numbers, np.arange(first, last)):
        sample_ids = np.ascontiguousarray(numbers)
    return PackedSamples(
        num_rows=last - first,
        num_slots=num_slots,
        ids=np.ascontiguousarray(batch.ids.numpy()),
        offsets=None if _is_even(offsets) else np.ascontiguousarray(offsets),
        dense=np.ascontiguousarray(batch.dense.numpy()),
        labels=np.ascontiguousarray(batch.labels.numpy()),
        weights=None if batch.weights is None else np.ascontiguousarray(batch.weights.numpy()),
        rows=rows,
        sample_ids=sample_ids,
        extra={name: np.ascontiguousarray(tensor.numpy()) for name, tensor in batch.extra.items()},
    )


def joined(parts: Sequence[PackedSamples]) -> PackedSamples:
    """Return samples of consecutive rows as one."""
    if len(parts) == 1:
        return parts[0]
    slots, num_rows = parts[0].num_slots, sum(part.num_rows for part in parts)
    given = [part for part in parts if part.num_samples] or parts[:1]
    if any(part.shape != given[0].shape for part in given):
        raise DataError(
            "samples of one data set have unlike shapes", hint="give all the same numbers, slots and fields"
        )
    rows = None
    if any(part.rows is not None for part in parts):
        starts = np.cumsum([0, *(part.num_rows for part in parts)])
        each = [np.arange(part.num_rows) if part.rows is None else part.rows for part in parts]
        rows = np.concatenate([own + start for own, start in zip(each, starts, strict=False)]).astype(np.int32)
    offsets = None
    if any(part.offsets is not None for part in given):
        lengths = [
            np.ones(len(part.ids), np.int64) if part.offsets is None else np.diff(part.offsets) for part in given
        ]
        ends = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        offsets = np.concatenate([[0], ends]).astype(
            np.uint32 if not len(ends) or ends[-1] <= MOST_OFFSET else np.int64
        )
    weights = None if given[0].weights is None else np.concatenate([part.weights for part in given])
    extra = {
        name: padded_cat([torch.from_numpy(part.extra[name]) for part in given]).numpy() for name in given[0].extra
    }
    return PackedSamples(
        num_rows=num_rows,
        num_slots=slots,
        ids=np.concatenate([part.ids for part in given]),
        offsets=offsets,
        dense=np.concatenate([part.dense for part in given]),
        labels=np.concatenate([part.labels for part in given]),
        weights=weights,
        rows=rows,
        extra=extra,
    )


def _is_even(offsets: NDArray[np.int64]) -> bool:
    """Say whether every slot has one id."""
    return bool(offsets[-1] == len(offsets) - 1) and bool(np.array_equal(offsets, np.arange(len(offsets))))


def _ids_type(ids: NDArray[np.int64]) -> type[np.integer]:
    """Return the narrowest type that holds all ids."""
    if not ids.size:
        return IDS_TYPES[0]
    least, most = int(ids.min()), int(ids.max())
    return next((kind for kind in IDS_TYPES if least >= 0 and most <= np.iinfo(kind).max), np.int64)


def _narrow_labels(labels: NDArray[np.float32]) -> Array:
    """Return labels in bytes where that is exact."""
    with np.errstate(invalid="ignore"):
        narrow = labels.astype(np.uint8)
    exact = np.array_equal(narrow.astype(np.float32).view(np.uint32), np.ascontiguousarray(labels).view(np.uint32))
    return narrow if exact else np.ascontiguousarray(labels)
