"""The thread that gets things ready: samples read, keys sorted out, rows and dense parameters fetched."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from dovetail.data.source import Source
from dovetail.runtime.messages import Span
from dovetail.runtime.process import Process
from dovetail.runtime.samples import Samples
from dovetail.runtime.worker.keys import look_up
from dovetail.runtime.worker.lines import Abandoned, lines_of, now_s
from dovetail.runtime.worker.model import ServedModel
from dovetail.runtime.worker.task import Fetched, Part, Task

AHEAD = 2
"""Micro-batches that are ready before they are needed."""


class Fetcher:
    """Turns parts into micro-batches with their parameters, one after the other."""

    def __init__(self, process: Process, source: Source, model: ServedModel, wanted: Callable[[Task], bool]) -> None:
        """Make the lines; `run` is the thread."""
        run = process.blueprint.run
        self._process, self._model, self._wanted = process, model, wanted
        self._lines = lines_of(process, "fetch")
        self._sync = run.training.mode == "sync"
        self._dense_on_servers = run.training.dense == "ps" and bool(process.blueprint.dense)
        self._samples = Samples(process.blueprint, source)
        self.parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self.ready: queue.Queue[Fetched] = queue.Queue(maxsize=AHEAD)

    def run(self) -> None:
        """Get parts ready until there is None."""
        try:
            while (part := self.parts.get()) is not None:
                if self._wanted(part.task):
                    try:
                        self._put(self._fetch(part))
                    except Abandoned:
                        continue
        finally:
            self._lines.close()

    def _put(self, fetched: Fetched) -> None:
        """Hand over a micro-batch, unless nobody wants it any more."""
        while True:
            try:
                self.ready.put(fetched, timeout=0.1)
            except queue.Full:
                if not self._wanted(fetched.part.task):
                    return
            else:
                return

    def _fetch(self, part: Part) -> Fetched:
        """Read samples, then fetch the rows they need; with a task's first part, the dense parameters too."""
        assign = part.task.assign
        start_s = time.perf_counter()
        batch = self._samples.read(assign.epoch, part.first, part.last)
        num_servers = self._process.blueprint.num_servers
        look_ups = [look_up(table, keys, num_servers) for table, keys in self._model.asked(batch)]
        dense = self._dense_on_servers and part.number == 0
        begin_s = now_s()
        version = assign.step if self._sync else 0
        answer = self._lines.pull(
            assign.generation, version, look_ups, dense=dense, wanted=lambda: self._wanted(part.task)
        )
        part.task.spans.append(Span("fetch", begin_s + answer.parked_s, now_s(), assign.step))
        seconds = time.perf_counter() - start_s - answer.parked_s
        rows = list(zip(look_ups, answer.rows, strict=True))
        return Fetched(part, batch, rows, answer.dense, answer.parked_s, seconds)
