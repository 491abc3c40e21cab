"""Getting inputs: the thread that reads samples, sorts out their keys, and fetches rows and dense parameters."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.messages import Span
from dovetail.runtime.samples import Samples
from dovetail.runtime.worker.keys import look_up
from dovetail.runtime.worker.lines import Abandoned, Lines, now_s
from dovetail.runtime.worker.model import ServedModel
from dovetail.runtime.worker.task import Fetched, MicroBatch, Task

AHEAD = 2
"""Micro-batches that are ready before they are needed."""
LOOK_S = 0.1
"""How often a thread with a micro-batch that has no place yet looks whether it is still wanted."""


class Fetcher:
    """Gets one micro-batch ready after the other."""

    def __init__(
        self,
        blueprint: Blueprint,
        samples: Samples,
        model: ServedModel,
        lines: Lines,
        *,
        wanted: Callable[[Task], bool],
        dense: bool,
        rests: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the lines, which `run` closes; with `dense`, a task begins with the servers' dense parameters.

        `rests` is called when there is nothing to do.
        """
        self._rests = rests
        self._samples, self._model, self._lines = samples, model, lines
        self._wanted, self._dense = wanted, dense
        self._sync, self._num_servers = blueprint.run.training.mode == "sync", blueprint.num_servers
        self.micro_batches: queue.SimpleQueue[MicroBatch | None] = queue.SimpleQueue()
        self.ready: queue.Queue[Fetched | None] = queue.Queue(maxsize=AHEAD)
        """What can be computed; None has whoever computes look at the tasks again."""

    def nudge(self) -> None:
        """Have whoever computes look at the tasks again."""
        with suppress(queue.Full):  # then it has something to look at already
            self.ready.put_nowait(None)

    def run(self) -> None:
        """Get micro-batches ready until there is None."""
        try:
            while (micro_batch := self.micro_batches.get()) is not None:
                if self._wanted(micro_batch.task) and micro_batch.number not in micro_batch.task.given_back:
                    with suppress(Abandoned):
                        self._put(self.fetch(micro_batch))
                self._rests()
        finally:
            self._lines.close()

    def _put(self, fetched: Fetched) -> None:
        """Hand over a micro-batch, unless nobody wants it any more."""
        while True:
            try:
                self.ready.put(fetched, timeout=LOOK_S)
            except queue.Full:
                if not self._wanted(fetched.micro_batch.task):
                    return
            else:
                return

    def fetch(self, micro_batch: MicroBatch) -> Fetched:
        """Read samples, then fetch the rows they need; with a task's first micro-batch, the dense parameters too."""
        task, assign = micro_batch.task, micro_batch.task.assign
        start_s = time.perf_counter()
        batch = self._samples.read(assign.epoch, micro_batch.first, micro_batch.last)
        look_ups = [look_up(table, keys, self._num_servers) for table, keys in self._model.asked(batch)]
        begin_s = now_s()
        answer = self._lines.pull(
            assign.generation,
            assign.step if self._sync else 0,
            look_ups,
            dense=self._dense and micro_batch.number == 0,
            wanted=lambda: self._wanted(task),
            keep=True,
        )
        task.spans.append(Span("fetch", begin_s + answer.parked_s, now_s(), assign.step))
        end_s = time.perf_counter()
        rows = list(zip(answer.look_ups, answer.rows, strict=True))
        # What came before servers had to wait for a step was done while there was something else to wait for.
        after_s = end_s - (answer.asked_s if answer.parked_s else start_s) - answer.parked_s
        return Fetched(micro_batch, batch, rows, answer.dense, end_s - start_s - answer.parked_s, after_s)
