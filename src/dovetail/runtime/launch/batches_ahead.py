"""The batches of a run on a device, read by another thread and announced before they are trained on."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dovetail.data.batch import Batch
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.launch.device_steps import DeviceSteps
from dovetail.runtime.samples import Samples

THREAD_NAME = "dovetail-batches"


class BatchesAhead:
    """Batches in their order: so many are announced, and as many more are being read."""

    def __init__(self, blueprint: Blueprint, samples: Samples, steps: DeviceSteps, *, first: int, depth: int) -> None:
        """Begin at a position of the run; nothing is read before the first batch is taken."""
        self._blueprint, self._samples, self._steps, self._depth = blueprint, samples, steps, depth
        self._read_to = first
        self._reading: deque[tuple[Future[tuple[Batch, Any]], int]] = deque()
        self._announced: deque[tuple[Batch, int]] = deque()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME)

    def take(self) -> tuple[Batch, int] | None:
        """Return the next batch and the position after it; None at the end. What reading it raised is raised here."""
        self._read_on()
        while self._reading and len(self._announced) <= self._depth:
            future, end = self._reading[0]
            if self._announced and not future.done():
                break
            batch, prepared = future.result()
            self._reading.popleft()
            self._steps.announce(prepared)
            self._announced.append((batch, end))
            self._read_on()
        return self._announced.popleft() if self._announced else None

    def _read_on(self) -> None:
        """Have batches read until enough are on their way."""
        samples, epochs = self._blueprint.samples, self._blueprint.run.training.epochs
        while len(self._reading) <= self._depth and self._read_to < samples * epochs:
            epoch, first = divmod(self._read_to, samples)
            last = min(samples, first + self._blueprint.batch)
            self._read_to += last - first
            self._reading.append((self._reader.submit(self._read, epoch, first, last), self._read_to))

    def _read(self, epoch: int, first: int, last: int) -> tuple[Batch, Any]:
        batch = self._samples.read(epoch, first, last)
        return batch, self._steps.prepare(batch)

    def close(self) -> None:
        """Stop reading."""
        self._reader.shutdown(wait=True, cancel_futures=True)
