"""Batches in their order, read and prepared by other threads before they are trained on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dovetail.data.ahead import MadeAhead
from dovetail.data.batch import Batch
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.samples import Samples
from dovetail.runtime.trainer.group import Alone, Group
from dovetail.runtime.trainer.steps import PreparesTogether, Steps

THREAD_NAME = "dovetail-batches"
READ_SAMPLES = 32_768
"""Small batches are read together, up to so many samples: reading has a price that does not go by their number."""


_Place = tuple[int, int, int]
"""An epoch, and positions in it: the first of a batch, and the one after its last."""
_Prepared = tuple[Batch, int, Any]
"""A batch, the position of the run after it, and what is announced of it."""


def _compute_alone() -> None:
    """Have this thread compute without helpers.

    OpenMP gives each thread that computes helpers of its own. Where all together are more than the cores, none of them
    waits actively any more, and each of the loop's many short computations begins with a wake-up: an LSTM takes 3x.
    """
    torch.get_num_threads()  # a thread that has not asked takes over what others set at its first computation
    torch.set_num_threads(1)


class BatchesAhead:
    """So many batches are announced, and as many more are being read; with a depth of 0 the caller's thread reads."""

    def __init__(
        self, blueprint: Blueprint, samples: Samples, steps: Steps, group: Group, *, first: int, depth: int
    ) -> None:
        """Begin at a position of the run; nothing is read before the first batch is taken."""
        self._blueprint, self._samples, self._steps, self._group = blueprint, samples, steps, group
        self._depth, self._waited_s = depth, 0.0
        self._read_s, self._counting = 0.0, threading.Lock()
        self._is_alone = isinstance(group, Alone)
        reads_together = self._is_alone and blueprint.private is None  # whose batches have as many as they happen to
        self._at_once = max(1, min(depth, READ_SAMPLES // blueprint.batch)) if reads_together else 1
        self._announced: deque[tuple[Batch, int]] = deque()
        self._read: deque[_Prepared] = deque()
        self._places = self._all_places(first)
        self._reading = self._begin_reading() if depth else None
        self._of_thread = threading.local()

    def _begin_reading(self) -> MadeAhead[list[_Place], list[_Prepared]]:
        """Return what reads ahead: as many threads as the run says, or keep it from waiting; of a group, one."""
        readers = self._blueprint.run.data.readers or (None if self._is_alone else 1)
        return MadeAhead(
            self._places,
            self._read_at,
            ahead=-(-self._depth // self._at_once) + 1,
            readers=1 if self._samples.reads_serially else readers,
            name=THREAD_NAME,
        )

    def take_waited_s(self) -> float:
        """Return how long batches were waited for since this was last asked."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def take_read_s(self) -> float:
        """Return how long cores were busy reading since this was last asked."""
        with self._counting:
            read_s, self._read_s = self._read_s, 0.0
        return read_s

    def take(self) -> tuple[Batch, int] | None:
        """Return the next batch and the position after it; None at the end. What reading it raised is raised here."""
        if len(self._announced) <= self._depth // 2:
            self._announce()
        return self._announced.popleft() if self._announced else None

    def _announce(self) -> None:
        """Announce batches that are read, so many ahead; wait where there is none at all."""
        while len(self._announced) <= self._depth:
            if not self._read and not self._read_on():
                return
            batch, end, prepared = self._read.popleft()
            self._steps.announce(prepared)
            self._announced.append((batch, end))

    def _read_on(self) -> bool:
        """Take batches that are read, where there are any or none is announced; say whether it was so."""
        begin_s = time.perf_counter()
        if self._reading is None:
            places = next(self._places, None)
            self._read.extend([] if places is None else self._read_at(places))
        elif not self._announced or self._reading.has_next:
            found = self._reading.take()
            self._read.extend([] if found is None else found[0])
        elif len(self._announced) <= self._depth // 2:
            self._reading.wish()  # rows of batches that are announced late are waited for
        self._waited_s += time.perf_counter() - begin_s
        return bool(self._read)

    def _all_places(self, position: int) -> Iterator[list[_Place]]:
        """Yield where batches lie that are read together, from a position of the run on."""
        samples, epochs = self._blueprint.samples, self._blueprint.run.training.epochs
        size = self._blueprint.batch
        while position < samples * epochs:
            epoch, begin = divmod(position, samples)
            end = min(samples, begin + size * self._at_once)  # an epoch has its own order
            yield [(epoch, first, min(end, first + size)) for first in range(begin, end, size)]
            position += end - begin

    def _read_at(self, places: Sequence[_Place]) -> list[_Prepared]:
        """Read batches that lie one after the other in an epoch."""
        if self._reading is not None and not hasattr(self._of_thread, "is_alone"):
            self._of_thread.is_alone = True
            _compute_alone()
        epoch, begin, end = places[0][0], places[0][1], places[-1][2]
        begun_s = time.thread_time()
        whole = self._samples.read(epoch, *self._group.part(begin, end))
        with self._counting:
            self._read_s += time.thread_time() - begun_s
        num_before = epoch * self._blueprint.samples
        if len(places) == 1:
            return [(whole, num_before + end, self._steps.prepare(whole))]
        if whole.num_samples != end - begin:  # broken samples are left out, nobody says which
            return [each for place in places for each in self._read_at([place])]
        batches, steps = whole.split(self._blueprint.batch), self._steps
        if isinstance(steps, PreparesTogether):
            prepared = steps.prepare_all(whole, batches)
        else:
            prepared = [steps.prepare(batch) for batch in batches]
        ends = [num_before + last for _, _, last in places]
        return list(zip(batches, ends, prepared, strict=True))

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.close()
