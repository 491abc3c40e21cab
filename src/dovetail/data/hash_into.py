"""Ids hashed into the size of a table: an option of a column, written down in the schema."""

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
