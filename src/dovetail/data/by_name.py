"""Data whose columns stand in another order than a model was trained on: matched by name."""

from __future__ import annotations

import torch

from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.errors import did_you_mean


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
