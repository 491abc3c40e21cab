"""A first stage at work: micro-batches take off, and come back through the other stages."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress

from dovetail.runtime.worker.links.servers import Abandoned, now_s
from dovetail.runtime.worker.rows.batch_rows import Fetch
from dovetail.runtime.worker.stages.pipeline import Pipeline
from dovetail.runtime.worker.tasks.lifecycle import TaskLifecycle
from dovetail.runtime.worker.tasks.task import FetchedBatch, Task

LANDING_S = 0.002
"""How long a main thread waits for what comes back through the stages before it looks for more to send."""
Begin = Callable[[FetchedBatch, float, float], None]


class PipelineFeeder:
    """Keeps a pipeline full, one task after the other; the main thread's."""

    def __init__(
        self,
        pipeline: Pipeline,
        ready: queue.Queue[FetchedBatch | None],
        passing: TaskLifecycle,
        *,
        wanted: Callable[[Task], bool],
    ) -> None:
        """Take micro-batches from `ready`, and hand what comes back to `passing`."""
        self._pipeline, self._ready, self._passing, self._wanted = pipeline, ready, passing, wanted

    @property
    def is_under_way(self) -> bool:
        """Say whether micro-batches are on their way."""
        return self._pipeline.task is not None

    def take_off(self, fetched: FetchedBatch, fetch: Fetch) -> None:
        """Send a micro-batch on its way through the stages; an empty one is done at once."""
        task = fetched.micro_batch.task
        if not fetched.batch.num_samples:
            self._passing.pass_on(task, [])
        else:
            self._pipeline.take_off(fetched, fetch, lambda: self._wanted(task))

    def go_on(self, begin: Begin) -> None:
        """Take in what comes back of the task under way, and `begin` what is fetched where there is room."""
        task = self._pipeline.task
        if task is None:
            return
        begin_s = now_s()
        fetched: FetchedBatch | None = None
        if not self._pipeline.is_full:
            with suppress(queue.Empty):
                fetched = self._ready.get_nowait()
        while fetched is not None and fetched.micro_batch.task is not task and self.is_under_way:
            self._land(task, LANDING_S)  # the next task begins when this one is whole
        if fetched is not None and not self.is_under_way:
            self._passing.finish_whole()
        if fetched is not None and self._wanted(fetched.micro_batch.task):
            begin(fetched, begin_s, 0.0)
        self._land(task, 0.0 if fetched is not None else LANDING_S)

    def _land(self, task: Task, wait_s: float) -> None:
        """Take in micro-batches that have come back."""
        if not self._wanted(task):
            raise Abandoned
        for fetched, computed in self._pipeline.landed(wait_s):
            self._passing.count(fetched, computed)
            self._passing.pass_on(fetched.micro_batch.task, computed.rows)
