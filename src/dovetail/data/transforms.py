"""Sources seen otherwise: ids hashed into the size of a table, columns in the order of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.errors import did_you_mean


def hashed(source: Source, hash_into: int | Mapping[str, int]) -> Source:
    """Return the same samples with every id modulo `hash_into`: one size for all slots, or one for each that is named.

    Ids of text are hashes already. Two values that meet in one id share a row.
    """
    return Hashed(source, hash_into)


def hashed_schema(schema: Schema, hash_into: int | Mapping[str, int] | None) -> Schema:
    """Return a schema whose ids lie below the sizes of tables; a slot that is not named keeps its ids."""
    if hash_into is None:
        return schema
    names = [slot.name for slot in schema.slots]
    sizes = dict(hash_into) if isinstance(hash_into, Mapping) else dict.fromkeys(names, hash_into)
    for name, size in sizes.items():
        if name not in names:
            raise DataError(f"hash_into names `{name}`, which is no slot", hint=did_you_mean(name, names))
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise DataError(f"slot `{name}` is hashed into {size!r}", hint="give the rows of its table, at least 1")
    slots = tuple(
        replace(slot, hash_into=sizes[slot.name], num_keys=sizes[slot.name], first_key=0)
        if slot.name in sizes
        else slot
        for slot in schema.slots
    )
    return replace(schema, slots=slots)


def hash_ids(batch: Batch, sizes: Sequence[int]) -> Batch:
    """Return samples with the ids of each slot modulo its size; those of a slot of size 0 stay."""
    if not batch.ids.numel():
        return batch
    # NumPy, as it keeps to this thread: threads of torch beside those that train would slow both.
    whole = np.array([size or (1 << 63) - 1 for size in sizes], dtype=np.int64)
    each = (
        whole[0]
        if (whole == whole[0]).all()
        else np.repeat(np.tile(whole, batch.num_samples), np.diff(batch.offsets.numpy()))
    )
    return replace(batch, ids=torch.from_numpy(batch.ids.numpy() % each))


class Hashed:
    """A source whose ids lie below the sizes of tables."""

    def __init__(self, source: Source, hash_into: int | Mapping[str, int]) -> None:
        """Keep the size of each slot."""
        self._source = source
        self.schema = hashed_schema(source.schema, hash_into)
        self._sizes = tuple(slot.hash_into or 0 for slot in self.schema.slots)

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
        return hash_ids(self._source.read(first, last), self._sizes)

    def _gather(self, samples: NDArray[np.int64], *, shift: int = 0, pin: bool = False) -> Batch:
        """Return samples by their numbers, where the samples' own source does."""
        batch = hash_ids(self._source.gather(samples, shift=shift), self._sizes)  # type: ignore[attr-defined]
        return batch.pinned() if pin else batch

    def __getattr__(self, name: str) -> Any:
        """Return what else the samples' own source knows, such as which rows were broken."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._source, name)
        return self._gather if name == "gather" else found


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
