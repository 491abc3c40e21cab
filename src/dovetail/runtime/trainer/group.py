"""Who trains together: the processes of one run that each compute a part of every batch, with the same loop."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Protocol, TypeVar

from torch import Tensor

from dovetail.data.batch import Batch

T = TypeVar("T")


class Group(Protocol):
    """Processes that take every step together. All of them call each method, in the same order."""

    @property
    def rank(self) -> int:
        """Which of them this is, from 0; the first writes what there is only one of."""
        ...

    @property
    def size(self) -> int:
        """How many there are; each writes its part of every table into a checkpoint."""
        ...

    def part(self, first: int, last: int) -> tuple[int, int]:
        """Return which samples of a batch at positions `first` to `last` are computed here; any thread may ask."""
        ...

    def samples_of(self, batch: Batch) -> int:
        """Return how many samples the whole batch has of which this is the part here."""
        ...

    def sum_dense(self, gradients: Tensor) -> None:
        """Put the sum over all of them into each one's dense gradients."""
        ...

    def agree(self, stop: bool) -> tuple[bool, float]:
        """Return whether to stop, and what time it is, as the first of them had it, a step ago at the earliest."""
        ...

    def gather(self, payload: bytes) -> list[bytes]:
        """Return what each of them has, by rank."""
        ...

    def wait_for(self, future: Future[T]) -> T:
        """Return what another thread of this process comes to, however long that takes."""
        ...


class Alone:
    """A group of one."""

    rank, size = 0, 1

    def part(self, first: int, last: int) -> tuple[int, int]:
        """Return all of it."""
        return first, last

    def samples_of(self, batch: Batch) -> int:
        """Return how many the batch has."""
        return batch.num_samples

    def sum_dense(self, gradients: Tensor) -> None:
        """Leave them as they are."""

    def agree(self, stop: bool) -> tuple[bool, float]:
        """Return what is wanted, and the time."""
        return stop, time.monotonic()

    def gather(self, payload: bytes) -> list[bytes]:
        """Return what there is."""
        return [payload]

    def wait_for(self, future: Future[T]) -> T:
        """Return what another thread comes to."""
        return future.result()
