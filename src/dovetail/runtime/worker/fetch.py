"""Getting inputs: the thread that reads samples, sorts out their keys, and fetches rows and dense parameters."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from dovetail.data.batch import Batch
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.messages import Span
from dovetail.runtime.samples import Samples
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.dense.sync import DenseSync
from dovetail.runtime.worker.links.servers import Abandoned, ServerConnections
from dovetail.runtime.worker.rows.incoming import CachedIncoming
from dovetail.runtime.worker.rows.keys import LookUp, look_up
from dovetail.runtime.worker.rows.row_cache import RowCache
from dovetail.runtime.worker.tasks.spans import now_s
from dovetail.runtime.worker.tasks.task import FetchedBatch, MicroBatch, Task

Item = TypeVar("Item")
READ = "dovetail-read"
"""What the threads that read are called."""
AHEAD = 2
"""Micro-batches that are ready before they are needed."""
LOOK_S = 0.1
"""How often a thread with a micro-batch that has no place yet looks whether it is still wanted."""


@dataclass(frozen=True, slots=True)
class Read:
    """Samples of a micro-batch, and the rows that they need."""

    micro_batch: MicroBatch
    batch: Batch
    look_ups: list[LookUp]
    read_s: float
    data_s: float
    """Of that, how long the samples took; the rest sorted out their keys."""
    core_s: float
    """Of that, how long a core was busy."""


class Fetcher:
    """Gets one micro-batch ready after the other."""

    def __init__(
        self,
        blueprint: Blueprint,
        samples: Samples,
        model: ServedModel,
        connections: ServerConnections,
        dense: DenseSync,
        *,
        wanted: Callable[[Task], bool],
        rests: Callable[[], None] = lambda: None,
        cache: RowCache | None = None,
    ) -> None:
        """Keep the connections, which `run` closes; `dense` says how a task gets its dense parameters.

        `rests` is called when there is nothing to do. Rows that the `cache` keeps do not travel.
        """
        self._memory = connections.memory
        self._reads_ahead = self._memory.is_locked
        """A GPU is so fast that reading the next samples must not wait for the rows of these."""
        self._cache, self._widths = cache, [table.width for table in blueprint.tables]
        self._samples, self._model, self._connections, self._dense = samples, model, connections, dense
        self._wanted, self._rests = wanted, rests
        self._readers = 1 if samples.reads_serially else blueprint.run.data.readers or 1
        self._is_sync, self._num_servers = blueprint.run.training.mode == "sync", blueprint.num_servers
        self.micro_batches: queue.SimpleQueue[MicroBatch | None] = queue.SimpleQueue()
        self.ready: queue.Queue[FetchedBatch | None] = queue.Queue(maxsize=AHEAD)
        """What can be computed; None has whoever computes look at the tasks again."""

    def nudge(self) -> None:
        """Have whoever computes look at the tasks again."""
        with suppress(queue.Full):  # then it has something to look at already
            self.ready.put_nowait(None)

    def forget(self) -> None:
        """Have rows come again that are kept here; any thread may say so."""
        if self._cache is not None:
            self._cache.forget()

    def run(self) -> None:
        """Get micro-batches ready until there is None."""
        try:
            for read in self._each_read():
                if self._is_wanted(read.micro_batch):
                    with suppress(Abandoned):
                        self._put(self.fetch(read))
                self._rests()
        finally:
            self._connections.close()

    def _each_read(self) -> Iterator[Read]:
        """Yield micro-batches that are read: here, in a thread one ahead, or in as many as the run says."""
        if self._readers > 1:
            return self._read_by_several()
        return ahead(self._all_read(), READ) if self._reads_ahead else self._all_read()

    def _read_by_several(self) -> Iterator[Read]:
        """Yield micro-batches in their order that several threads read."""
        with ThreadPoolExecutor(self._readers, thread_name_prefix=READ) as pool:
            for future in ahead(self._begun_in(pool), READ, most=self._readers):
                read = future.result()
                self._rests()
                if read is not None:
                    yield read

    def _begun_in(self, pool: ThreadPoolExecutor) -> Iterator[Future[Read | None]]:
        """Yield what comes of each micro-batch, until there is None."""
        while (micro_batch := self.micro_batches.get()) is not None:
            yield pool.submit(self._read_wanted, micro_batch)

    def _read_wanted(self, micro_batch: MicroBatch) -> Read | None:
        return self.read(micro_batch) if self._is_wanted(micro_batch) else None

    def _all_read(self) -> Iterator[Read]:
        """Yield micro-batches that are read, until there is None."""
        while (micro_batch := self.micro_batches.get()) is not None:
            read = self._read_wanted(micro_batch)
            self._rests()  # whoever has read something may have to wait until it is taken
            if read is not None:
                yield read

    def _is_wanted(self, micro_batch: MicroBatch) -> bool:
        return self._wanted(micro_batch.task) and micro_batch.number not in micro_batch.task.given_back

    def _put(self, fetched: FetchedBatch) -> None:
        """Hand over a micro-batch, unless nobody wants it any more."""
        while True:
            try:
                self.ready.put(fetched, timeout=LOOK_S)
            except queue.Full:
                if not self._wanted(fetched.micro_batch.task):
                    return
            else:
                return

    def read(self, micro_batch: MicroBatch) -> Read:
        """Read samples, and sort out their keys."""
        start_s, start_core_s, begin_s = time.perf_counter(), time.thread_time(), now_s()
        task = micro_batch.task
        batch = self._memory.lock_batch(self._samples.read(task.assign.epoch, micro_batch.first, micro_batch.last))
        data_s, core_s = time.perf_counter() - start_s, time.thread_time() - start_core_s
        task.spans.append(Span("read", begin_s, now_s(), task.assign.step))
        asked = [look_up(table, keys, self._num_servers) for table, keys in self._model.asked(batch)]
        look_ups = [self._memory.lock(each) for each in asked]
        return Read(micro_batch, batch, look_ups, time.perf_counter() - start_s, data_s, core_s)

    def fetch(self, read: Read) -> FetchedBatch:
        """Fetch the rows that samples need; with a task's first micro-batch, the dense parameters too."""
        micro_batch, look_ups = read.micro_batch, read.look_ups
        task, assign = micro_batch.task, micro_batch.task.assign
        start_s = time.perf_counter() - read.read_s
        incoming = None if self._cache is None else CachedIncoming(look_ups, self._widths, self._cache, assign)
        is_first, pull = micro_batch.number == 0, self._dense.pull
        arriving = pull.ask(task) if pull is not None and is_first else None
        begin_s = now_s()
        answer = self._connections.pull(
            assign.generation,
            assign.step if self._is_sync else 0,
            look_ups,
            dense=self._dense.is_fetched and is_first and pull is None,
            wanted=lambda: self._wanted(task),
            keep=True,
            incoming=incoming,
        )
        if incoming is not None:
            task.num_rows += incoming.num_rows
            task.num_kept += incoming.num_kept
            task.kept_bytes += incoming.kept_bytes
        task.spans.append(Span("fetch", begin_s + answer.parked_s, now_s(), assign.step))
        end_s = time.perf_counter()
        rows = list(zip(answer.look_ups, answer.rows, strict=True))
        # What came before servers had to wait for a step was done while there was something else to wait for. How long
        # they waited is by their own clocks, and may begin before this one's question to the last of them.
        after_s = max(0.0, end_s - (answer.asked_s if answer.parked_s else start_s) - answer.parked_s)
        fetch_s = max(0.0, end_s - start_s - answer.parked_s)
        return FetchedBatch(
            micro_batch, read.batch, rows, answer.dense, fetch_s, after_s, arriving, read.data_s, read.core_s
        )


def ahead(items: Iterator[Item], name: str, *, most: int = 1) -> Iterator[Item]:
    """Yield items that a thread makes, so many ahead; what goes wrong there goes wrong here."""
    made: queue.Queue[Item | None] = queue.Queue(maxsize=most)
    failed: list[BaseException] = []

    def make() -> None:
        try:
            for item in items:
                made.put(item)
        except BaseException as error:  # whoever waits says it
            failed.append(error)
        made.put(None)

    threading.Thread(target=make, name=name, daemon=True).start()
    while (item := made.get()) is not None:
        yield item
    if failed:
        raise failed[0]
