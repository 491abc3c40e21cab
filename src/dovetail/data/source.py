"""Where samples come from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dovetail.data.batch import Batch
from dovetail.data.schema import Schema


@runtime_checkable
class Source(Protocol):
    """Samples that can be read by their number, any range at any time, by any thread."""

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        ...

    @property
    def num_samples(self) -> int | None:
        """How many samples there are; None where there is no end."""
        ...

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`, with these numbers as their ids.

        The same number is always the same sample. Broken ones are left out, so fewer may come back.
        """
        ...
