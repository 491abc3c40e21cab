"""Passing on: the thread that sends gradients while the next micro-batch is computed."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dovetail.runtime.dense.buckets import Bucket
from dovetail.runtime.messages import Done, Push, Span
from dovetail.runtime.worker.links.servers import Abandoned, ServerConnections
from dovetail.runtime.worker.tasks.score_counts import Counts
from dovetail.runtime.worker.tasks.spans import IdleTime, now_s
from dovetail.runtime.worker.tasks.task import Floats, RowGradients, Task


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one micro-batch; with the last of a task, the dense ones of the whole task."""

    task: Task
    rows: RowGradients
    dense: Floats | None = None
    last: bool = False
    counts: Counts = ()
    put_s: float = 0.0
    """When the last ones were there to be sent."""


PushGradients = Callable[[Task, Push, RowGradients, Floats | None, Callable[[], bool]], None]
"""How gradients of a task get to the servers; the last argument says whether to go on waiting for them."""
Errand = Callable[[], None]
"""Something else that this thread does between sendings, in its turn."""


class Sender:
    """Pushes gradients, one micro-batch after the other; `run` is the thread, the rest is the main thread's."""

    def __init__(
        self,
        name: str,
        attempt: str,
        connections: ServerConnections,
        idle: IdleTime | None = None,
        *,
        wanted: Callable[[Task], bool],
        tell: Callable[[Done, Counts], None],
        rests: Callable[[], None] = lambda: None,
        push_masked: PushGradients | None = None,
    ) -> None:
        """Keep the connections, which `run` closes; `attempt` tells this process from others, `tell` reports a task.

        Where gradients go under masks, by `push_masked`, so does the loss: nobody is told of that of a task.

        While the last gradients of a task are on their way the worker is not `idle`. `rests` is called when there is
        nothing to do.
        """
        self._name, self._attempt, self.connections = name, attempt, connections
        self._idle = idle or IdleTime()
        self._wanted, self._tell, self._rests = wanted, tell, rests
        self._push_masked = push_masked
        self._queue: queue.SimpleQueue[Gradients | Errand | None] = queue.SimpleQueue()
        self._held: tuple[Task, RowGradients] | None = None
        self.is_at_work = True
        """Whether what is put here will be sent, if it is wanted."""

    def put(self, task: Task, rows: RowGradients) -> None:
        """Have gradients sent that are not the last of their task."""
        if rows:
            self._queue.put(Gradients(task, rows))

    def hold(self, task: Task, rows: RowGradients) -> None:
        """Keep gradients until it is known whether they are the last: one message less."""
        self._held = (task, rows)

    def release(self, task: Task) -> None:
        """Have gradients sent that were held: they are not the last."""
        self.put(task, self._take_held(task))

    def put_last(self, task: Task, rows: RowGradients | None, dense: Floats | None, counts: Counts) -> None:
        """Have the last gradients of a task sent, those that were held where `rows` is None; then report it."""
        rows = self._take_held(task) if rows is None else rows
        self._queue.put(Gradients(task, rows, dense, last=True, counts=counts, put_s=now_s()))

    def put_bucket(self, task: Task, where: Bucket, numbers: Floats, then: Errand) -> None:
        """Have a bucket of dense gradients sent; `then` is called when it was, or is not wanted any more."""

        def send() -> None:
            try:
                if self._wanted(task):
                    message, before = self._message(task, dense=True, first=where.begins), task.buckets_pushed
                    self.connections.push_bucket(message, where.server, numbers, lambda: self._wanted(task), before)
                    task.buckets_pushed[where.server] = task.buckets_pushed.get(where.server, 0) + 1
            finally:
                then()

        self._queue.put(send)

    def run_errand(self, errand: Errand) -> None:
        """Have something done by this thread, after all that waits to be sent."""
        self._queue.put(errand)

    def stop(self) -> None:
        """End the thread once everything is sent."""
        self._queue.put(None)

    def _take_held(self, task: Task) -> RowGradients:
        """Return what was held of a task; what was held of another is not wanted any more."""
        held, self._held = self._held, None
        return held[1] if held is not None and held[0] is task else []

    def run(self) -> None:
        """Send until told to stop."""
        try:
            while (gradients := self._queue.get()) is not None:
                with suppress(Abandoned):
                    if not isinstance(gradients, Gradients):
                        gradients()
                    elif self._wanted(gradients.task):
                        self._send(gradients)
                self._rests()
        finally:
            self.is_at_work = False
            self.connections.close()

    def _send(self, gradients: Gradients) -> None:
        """Push to every server; after a task's last gradients, report it."""
        task, assign = gradients.task, gradients.task.assign
        start_s = now_s()
        tables = tuple(wanted.table for wanted, _ in gradients.rows)
        message = self._message(task, tables=tables, dense=gradients.dense is not None, last=gradients.last)
        rows, dense, push = gradients.rows, gradients.dense, self._push_masked
        if push is not None:
            push(task, message, rows, dense, lambda: self._wanted(task))
        else:
            self.connections.push(message, rows, dense, lambda: self._wanted(task), task.buckets_pushed)
        task.num_pushed += 1
        end_s = now_s()
        task.spans.append(Span("send", start_s, end_s, assign.step))
        if gradients.last:
            self._idle.add_own(gradients.put_s, end_s)
            self._tell(self._done(task, max(0.0, end_s - gradients.put_s)), gradients.counts)
            self.connections.compression.task_done(task.compute_s)

    def _message(
        self, task: Task, *, dense: bool, tables: tuple[int, ...] = (), last: bool = False, first: int = -1
    ) -> Push:
        assign = task.assign
        return Push(
            generation=assign.generation,
            step=assign.step,
            task=assign.task,
            worker=self._attempt,
            part=task.num_pushed,
            tables=tables,
            dense=dense,
            last=last,
            positions=task.num_positions,
            samples=task.samples,
            loss=task.loss,
            factor=assign.factor,
            first=first,
        )

    def _done(self, task: Task, last_push_s: float) -> Done:
        """Return the report of a task that is pushed to all servers, the last gradients in `last_push_s`."""
        # Where later stages compute, exchanges with servers take longer than a worker's own layers, and vary: shares by
        # them would go astray, those by its layers are right.
        is_staged = len(task.stages_s) > 0
        return Done(
            name=self._name,
            generation=task.assign.generation,
            step=task.assign.step,
            task=task.assign.task,
            samples=task.samples,
            loss=task.loss if self._push_masked is None else 0.0,
            compute_s=task.compute_s,
            fixed_s=0.0 if is_staged else task.fixed_s + last_push_s,
            wait_s=task.wait_s,
            num_pieces=task.num_pieces,
            piece_samples=task.piece_samples,
            piece_s=task.piece_s,
            piece_wait_s=task.piece_wait_s,
            stages_s=task.stages_s,
            spans=tuple(task.spans),
            push_s=0.0 if is_staged else last_push_s,
            num_rows=task.num_rows,
            num_kept=task.num_kept,
            kept_bytes=task.kept_bytes,
            data_s=task.data_s,
            read_s=task.read_s,
        )
