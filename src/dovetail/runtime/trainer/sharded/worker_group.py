"""The workers of a sharded run as the loop sees them: who computes which samples, what all agree on, what each did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.runtime.trainer.sharded.process_group import ProcessGroup
from dovetail.runtime.trainer.sharded.steps import ShardedSteps
from dovetail.runtime.worker.control import Pulse

T = TypeVar("T")
LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Did:
    """What a worker did since it last told: samples, seconds, and the losses that have become known."""

    samples: float = 0.0
    busy_s: float = 0.0
    wait_s: float = 0.0
    loss_samples: float = 0.0
    loss: float = 0.0

    def __add__(self, other: Did) -> Did:
        return Did(
            samples=self.samples + other.samples,
            busy_s=self.busy_s + other.busy_s,
            wait_s=self.wait_s + other.wait_s,
            loss_samples=self.loss_samples + other.loss_samples,
            loss=self.loss + other.loss,
        )


FIELDS = ("samples", "busy_s", "wait_s", "loss_samples", "loss")


def part_of(first: int, last: int, rank: int, size: int) -> tuple[int, int]:
    """Return which of the positions `first` to `last` are a worker's: neighbours, and as many as the others have."""
    count = last - first
    return first + count * rank // size, first + count * (rank + 1) // size


class WorkerGroup:
    """One worker's place among all."""

    def __init__(self, rows: ProcessGroup, control: ProcessGroup, pulse: Pulse) -> None:
        """Sum over the first group, and agree in the second."""
        self._rows, self._control, self._pulse = rows, control, pulse
        self.rank, self.size = rows.rank, rows.size
        self.steps: ShardedSteps | None = None
        """What has the sum of dense gradients under way, and knows of the batches that were announced."""
        self._agreeing: Callable[[], NDArray[np.float64]] | None = None
        self._untold = Did()
        self._did = [Did() for _ in range(self.size)]
        """What all workers did since it was last taken, by rank."""

    def part(self, first: int, last: int) -> tuple[int, int]:
        """Return which samples of a batch are computed here."""
        return part_of(first, last, self.rank, self.size)

    def samples_of(self, batch: Batch) -> int:
        """Return how many samples the whole batch has of which this is the part here: batches come in their order."""
        return batch.num_samples if self.steps is None else self.steps.samples_of_next()

    def sum_dense(self, gradients: Tensor) -> None:
        """Put the sum over all workers into each one's dense gradients."""
        if self.steps is None:
            self._rows.finish(self._rows.begin_sum(gradients))
        else:
            self.steps.finish_sum()

    def agree(self, stop: bool) -> tuple[bool, float]:
        """Return what the first of them wanted, and its time, when this was last asked.

        So nobody waits: what each tells now goes its way while the next step is computed.
        """
        self._agreeing = self._agreeing or self._begin_to_tell(stop)
        theirs = self._take_in(self._agreeing)
        self._agreeing = self._begin_to_tell(stop)
        return bool(theirs[0, 0]), float(theirs[0, 1])

    def settle(self) -> None:
        """Have everyone know what all have told."""
        if self._agreeing is not None:
            self._take_in(self._agreeing)
        self._agreeing = None
        self._take_in(self._begin_to_tell(False))

    def _begin_to_tell(self, stop: bool) -> Callable[[], NDArray[np.float64]]:
        told = [stop, time.monotonic(), *(getattr(self._untold, name) for name in FIELDS)]
        self._untold = Did()
        return self._control.begin_swap(np.tile(np.array(told, dtype=np.float64), (self.size, 1)))

    def _take_in(self, agreeing: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
        theirs = agreeing()
        self._did = [
            before + Did(**dict(zip(FIELDS, row[2:].tolist(), strict=True)))
            for before, row in zip(self._did, theirs, strict=True)
        ]
        return theirs

    def tell(self, did: Did) -> None:
        """Have others know what this worker did, when they next agree."""
        self._untold = self._untold + did

    def take(self) -> Sequence[Did]:
        """Return what all workers did since this was last asked, by rank."""
        did, self._did = self._did, [Did() for _ in range(self.size)]
        return did

    def gather(self, payload: bytes) -> list[bytes]:
        """Return what every worker has, by rank."""
        return self._control.gather(payload)

    def wait_for(self, future: Future[T]) -> T:
        """Return what another thread of this process comes to; until then this one gets on."""
        while True:
            self._pulse.beat()
            with suppress(TimeoutError):
                return future.result(timeout=LOOK_S)
