"""Sources seen otherwise: ids hashed into the size of a table, columns in the order of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.errors import did_you_mean


def hashed(source: Source, hash_into: int | Mapping[str, int]) -> Source:
    """Return the same samples with every id modulo `hash_into`: one size for all slots, or one for each that is named.

    Ids of text are hashes already. Two values that meet in one id share a row.
    """
    names = [slot.name for slot in source.schema.slots]
    sizes = dict(hash_into) if isinstance(hash_into, Mapping) else dict.fromkeys(names, hash_into)
    for name, size in sizes.items():
        if name not in names:
            raise DataError(f"hash_into names `{name}`, which is no slot", hint=did_you_mean(name, names))
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise DataError(f"slot `{name}` is hashed into {size!r}", hint="give the rows of its table, at least 1")
    return Hashed(source, sizes)


class Hashed:
    """A source whose ids lie below the sizes of tables."""

    def __init__(self, source: Source, sizes: Mapping[str, int]) -> None:
        """Keep the size of each slot; one that is not named keeps its ids."""
        self._source = source
        slots = tuple(
            replace(slot, hash_into=sizes[slot.name], num_keys=sizes[slot.name], first_key=0)
            if slot.name in sizes
            else slot
            for slot in source.schema.slots
        )
        self.schema: Schema = replace(source.schema, slots=slots)
        self._sizes = torch.tensor([slot.hash_into or (1 << 63) - 1 for slot in slots], dtype=torch.int64)

    @property
    def num_samples(self) -> int | None:
        """How many samples there are."""
        return self._source.num_samples

    @property
    def columns(self) -> object:
        """Which columns are what, where the samples' own source has named ones; else None."""
        return getattr(self._source, "columns", None)

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`."""
        batch = self._source.read(first, last)
        if not batch.ids.numel():
            return batch
        if bool((self._sizes == self._sizes[0]).all()):
            return replace(batch, ids=batch.ids % self._sizes[0])
        sizes = self._sizes.repeat(batch.num_samples).repeat_interleave(batch.offsets.diff())
        return replace(batch, ids=batch.ids % sizes)

    def __getattr__(self, name: str) -> Any:
        """Return what else the samples' own source knows, such as which rows were broken."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)


def by_name(source: Source, wanted: Schema) -> Source:
    """Return the same samples with their numbers and slots in the order of `wanted`; refuse what does not match."""
    given = source.schema
    numbers = _places(given.dense, wanted.dense, "number")
    _places(tuple(field.name for field in given.fields), tuple(field.name for field in wanted.fields), "field")
    slots = _places(tuple(slot.name for slot in given.slots), tuple(slot.name for slot in wanted.slots), "slot")
    for here, place in zip(wanted.slots, slots, strict=True):
        there = given.slots[place]
        if here.hash_into != there.hash_into:
            raise DataError(
                f"slot `{here.name}` is hashed into {there.hash_into or 'nothing'}, the model was trained with "
                f"{here.hash_into or 'nothing'}",
                hint="read the data with the same hash_into",
            )
    if numbers == list(range(given.num_dense)) and slots == list(range(given.num_slots)):
        return source
    return _Ordered(source, wanted, numbers, slots)


def _places(given: tuple[str, ...], wanted: tuple[str, ...], what: str) -> list[int]:
    """Return where each wanted name is among those given."""
    for name in wanted:
        if name not in given:
            raise DataError(f"the data have no {what} `{name}`, which the model reads", hint=did_you_mean(name, given))
    if strange := [name for name in given if name not in wanted]:
        raise DataError(
            f"the data have a {what} `{strange[0]}`, which the model was not trained on",
            hint=f"leave it out: the model reads {', '.join(wanted) or f'no {what}s'}",
        )
    return [given.index(name) for name in wanted]


class _Ordered:
    """A source with its columns in another order."""

    def __init__(self, source: Source, schema: Schema, numbers: list[int], slots: list[int]) -> None:
        self._source, self.schema = source, schema
        self._numbers, self._slots = torch.tensor(numbers, dtype=torch.int64), torch.tensor(slots, dtype=torch.int64)

    @property
    def num_samples(self) -> int | None:
        """How many samples there are."""
        return self._source.num_samples

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`."""
        batch = self._source.read(first, last)
        fields = batch.present() | {"dense": batch.dense[:, self._numbers]}
        if len(self._slots) and batch.num_samples:
            begins = batch.offsets[:-1].view(batch.num_samples, -1)[:, self._slots].reshape(-1)
            lengths = batch.offsets.diff().view(batch.num_samples, -1)[:, self._slots].reshape(-1)
            offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
            places = torch.repeat_interleave(begins - offsets[:-1], lengths) + torch.arange(int(offsets[-1]))
            fields |= {"ids": batch.ids[places], "offsets": offsets}
        return Batch(**fields, extra=batch.extra)
