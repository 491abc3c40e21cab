"""Where samples come from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

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


@runtime_checkable
class Gathers(Protocol):
    """A source that puts any samples together at once: what files and data in memory do, faster than by ranges.

    It may also have `parts`, the first sample of each run of samples that it gets at once: an order draws those first.
    """

    def gather(self, samples: NDArray[np.int64], *, shift: int = 0, pin: bool = False) -> Batch:
        """Return samples by their numbers, in that order, broken ones left out; `shift` is added to their ids.

        With `pin` the batch is in page-locked memory.
        """
        ...


@runtime_checkable
class ExpectsReads(Protocol):
    """A source that gets samples ready in the background."""

    def expect(self, ranges: NDArray[np.int64]) -> None:
        """Hear that samples of these ranges ([n, 2], the last exclusive) are read soon, in this order."""
        ...
