"""Which columns of a table are what, and its rows as samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.files.decoder import DecodedPart, bad_rows_of
from dovetail.data.files.features import Feature, with_features
from dovetail.data.files.opening import DataFile
from dovetail.data.files.values import (
    complain,
    interleave,
    is_list,
    numbers_of,
    plain_numbers,
    tensor_of,
    values_of_slot,
)
from dovetail.data.schema import Field, Schema, Slot
from dovetail.errors import did_you_mean

SEPARATOR = "|"
"""What stands between the values of text that has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns are what.

    A multi-valued slot, a further field and a label of several numbers are columns of lists, or of text with
    `separator` between values. Several label columns make one label of as many numbers; without any it is 0.
    """

    label: str | tuple[str, ...] | None = "label"
    dense: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    separator: str = SEPARATOR
    weight: str | None = None
    """How much a sample counts, 0 or more."""
    fields: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """What the numbers of a further field are to be arranged as, e.g. (("pixels", (3, 32, 32)),)."""
    whole: tuple[str, ...] = ()
    """Further fields of text that hold whole numbers, such as ids; those of others are read as fractions."""
    transforms: tuple[Feature, ...] = ()
    """Columns that are made of others before any is read, one after the other."""

    def __post_init__(self) -> None:
        """Refuse a multi-valued slot that is no slot, and a shape of what is no field."""
        for name, _ in self.shapes:
            if name not in self.fields:
                raise DataError(f"`{name}` has a shape but is no field", hint=f"fields are: {', '.join(self.fields)}")
        for name in self.whole:
            if name not in self.fields:
                raise DataError(f"`{name}` is whole but no field", hint=f"fields are: {', '.join(self.fields)}")
        for name in self.multi_valued:
            if name not in self.slots:
                raise DataError(f"`{name}` is multi-valued but no slot", hint=f"slots are: {', '.join(self.slots)}")

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read from files: those of a sample, and what the made ones of them are made of."""
        return self._needed()[0]

    @property
    def used(self) -> tuple[Feature, ...]:
        """The transforms whose columns a sample has, or that such a one is made of."""
        return self._needed()[1]

    @property
    def of_samples(self) -> tuple[str, ...]:
        """All columns that a sample has."""
        weight = () if self.weight is None else (self.weight,)
        return (*self.labels, *weight, *self.dense, *self.slots, *self.fields)

    def _needed(self) -> tuple[tuple[str, ...], tuple[Feature, ...]]:
        """Return the columns that are read, and the transforms that are made: found from the last of them on."""
        needed, used = dict.fromkeys(self.of_samples), []
        for feature in reversed(self.transforms):
            if feature.name in needed:
                used.append(feature)
                del needed[feature.name]
                needed |= dict.fromkeys(feature.reads)
        return tuple(needed), tuple(reversed(used))

    def options(self) -> dict[str, Any]:
        """Return the options of data that name these columns, as a run file holds them."""
        lists = {
            "dense": list(self.dense),
            "slots": list(self.slots),
            "multi_valued": list(self.multi_valued),
            "fields": list(self.fields),
            "whole": list(self.whole),
            "shapes": {name: list(shape) for name, shape in self.shapes},
            "transforms": [str(feature) for feature in self.transforms],
        }
        found: dict[str, Any] = {"label": list(self.label) if isinstance(self.label, tuple) else self.label}
        found |= {} if self.weight is None else {"weight": self.weight}
        found |= {name: each for name, each in lists.items() if each or name in ("dense", "slots")}
        return found | ({} if self.separator == SEPARATOR else {"separator": self.separator})

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of the label."""
        return () if self.label is None else (self.label,) if isinstance(self.label, str) else self.label

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        return Schema(
            dense=self.dense,
            slots=tuple(Slot(name=name, multi_valued=name in self.multi_valued) for name in self.slots),
            fields=tuple(
                Field(
                    name=name,
                    shape=dict(self.shapes).get(name, (None,)),
                    dtype="int64" if name in self.whole else "float32",
                )
                for name in self.fields
            ),
            label_shape=(len(self.label),) if isinstance(self.label, tuple) else (),
        )

    def check(self, present: Sequence[str], *, where: str) -> None:
        """Refuse a file that lacks one of the columns."""
        for name in self.names:
            if name not in present:
                raise DataError(f"`{where}` has no column `{name}`", hint=did_you_mean(name, present))
        if twice := [name for name in self.names if list(present).count(name) > 1]:
            raise DataError(f"`{where}` has two columns `{twice[0]}`", hint="rename one of them")

    def part(
        self, file: DataFile, place: int, first_row: int, table: pa.Table, skipped: Mapping[int, str] | None = None
    ) -> DecodedPart:
        """Return the rows of a table as a part of `file`; `skipped` are rows of the part that the table lacks."""
        skipped = skipped or {}
        num_rows = table.num_rows + len(skipped)
        batch, bad = self.samples(table)
        if skipped:
            kept = [row for row in range(num_rows) if row not in skipped]
            batch = batch.with_sample_ids(batch.sample_ids.new_tensor(kept)[batch.sample_ids])
            bad = {kept[row]: reason for row, reason in bad.items()} | dict(skipped)
        return DecodedPart(place=place, num_rows=num_rows, batch=batch, bad_rows=bad_rows_of(file, first_row, bad))

    def samples(self, table: pa.Table) -> tuple[Batch, dict[int, str]]:
        """Return the rows that are not broken, with their row numbers as sample ids, and why the others are."""
        bad: dict[int, str] = {}
        table = with_features(table, self.used, bad)
        labels = self._labels(table, bad)
        weights = None
        if self.weight is not None:
            numbers = numbers_of(table[self.weight], bad, self.weight, may_lack=False)
            complain(bad, numbers < 0, f"`{self.weight}` is below 0")
            weights = torch.from_numpy(numbers.astype(np.float32))
        many = dict.fromkeys(self.multi_valued, self.separator)
        slots = [values_of_slot(table[name], name, many.get(name)) for name in self.slots]
        ids, offsets = interleave(slots, table.num_rows)
        batch = Batch(
            sample_ids=torch.from_numpy(np.arange(table.num_rows)),
            dense=torch.from_numpy(self._dense(table, bad)),
            ids=ids,
            offsets=offsets,
            labels=labels,
            weights=weights,
            extra={
                name: tensor_of(
                    table[name], bad, name, self.separator, dict(self.shapes).get(name), whole=name in self.whole
                )
                for name in self.fields
            },
        )
        if bad:
            good = np.setdiff1d(np.arange(table.num_rows), np.fromiter(bad, dtype=np.int64))
            batch = batch.take(torch.from_numpy(good))
        return batch, bad

    def _dense(self, table: pa.Table, bad: dict[int, str]) -> NDArray[np.float32]:
        """Return the numbers, 0 where there is none."""
        dense = np.empty((table.num_rows, len(self.dense)), dtype=np.float32)
        columns = [plain_numbers(table[name]) for name in self.dense]
        with np.errstate(over="ignore"):
            for position, column in enumerate(columns):
                if column is not None:
                    dense[:, position] = column
        for position, name in enumerate(self.dense):
            if columns[position] is None or not np.isfinite(dense[:, position]).all():
                dense[:, position] = numbers_of(table[name], bad, name, may_lack=True)
        return dense

    def _labels(self, table: pa.Table, bad: dict[int, str]) -> torch.Tensor:
        """Return the labels: float32 [n], or [n, ...] where a sample has several numbers."""
        if not self.labels:
            return torch.zeros(table.num_rows)
        if isinstance(self.label, str) and is_list(table[self.label].type):
            return tensor_of(table[self.label], bad, self.label, self.separator, None).float()
        columns = [numbers_of(table[name], bad, name, may_lack=False) for name in self.labels]
        labels = columns[0] if isinstance(self.label, str) else np.stack(columns, axis=1)
        return torch.from_numpy(labels.astype(np.float32))
