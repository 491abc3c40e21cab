"""The life of a task at a worker, in its main thread: nobody else begins one, computes for it, or ends it.

    _begin    a micro-batch is fetched: with the first of a task, its gradients count from zero
    _compute  forward and backward here; or the first stage's layers here, and the rest on its way through the stages
    _pass_on  its gradients go to the sender; after the last one,
    _finish   the dense ones go too, and all workers agree on the step; the sender reports it

A task that the coordinator puts back ends at the next look, by `Abandoned`, and leaves nothing behind.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress

import torch

from dovetail.runtime.messages import Message, More, RanOut, Reset, Span, Staff
from dovetail.runtime.model.parameters import statistics_vector
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.computer import Computed, Computer
from dovetail.runtime.worker.compute.sync_batch_norm import SyncBatchNorms
from dovetail.runtime.worker.dense.sync import DenseSync
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.runtime.worker.links.servers import Abandoned, connect_to_servers
from dovetail.runtime.worker.rows.batch_rows import Fetch
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.stages.pipeline import Pipeline
from dovetail.runtime.worker.tasks.inbox import Inbox, TaskProgress
from dovetail.runtime.worker.tasks.score_counts import counts_of
from dovetail.runtime.worker.tasks.spans import IdleTime, now_s
from dovetail.runtime.worker.tasks.task import FetchedBatch, RowGradients, Task

LOOK_S = 0.1
"""How often a main thread without work looks whether it should stop; a nudge wakes it sooner."""
RETURN_S = 0.002
"""How long a main thread waits for what comes back through the stages before it looks for more to send."""


class TaskLifecycle:
    """Takes micro-batches that are ready, and ends tasks that are whole."""

    def __init__(
        self,
        process: Process,
        computer: Computer,
        ready: queue.Queue[FetchedBatch | None],
        inbox: Inbox,
        sender: Sender,
        dense: DenseSync,
        compression: LinkCompression,
        idle: IdleTime,
        *,
        tell: Callable[[Message], None],
        wanted: Callable[[Task], bool],
        is_now: Callable[[int], bool],
    ) -> None:
        """Keep the parts of a worker that a task goes through; `tell` tells the coordinator.

        `wanted` says whether work on a task still counts, `is_now` whether a generation is the one that goes on.
        """
        self._name, training = process.name, process.blueprint.run.training
        self._computer, self._model, self._ready = computer, computer.model, ready
        self._inbox, self._sender, self._dense, self._idle = inbox, sender, dense, idle
        self._tell, self._wanted, self._is_now = tell, wanted, is_now
        self._is_sync = training.mode == "sync"
        self._connections = connect_to_servers(process, "compute", compression)
        self._pipeline = Pipeline(process, self._model) if process.blueprint.stages else None
        is_global = training.batch_norm == "global"
        self._norms = SyncBatchNorms(self._model, self._connections, process, wanted) if is_global else None
        self._is_private = process.blueprint.private is not None
        metrics = () if self._is_private else process.blueprint.metrics
        self._scores = counts_of(metrics, lambda: statistics_vector(self._model.graph), has_own=not is_global)

    def handle(self, message: Message) -> None:
        """Take in who holds the later stages, in the control thread."""
        if isinstance(message, Staff | Reset) and self._pipeline is not None:
            self._pipeline.staff = message.stages

    def go_on(self) -> None:
        """Work on what is fetched, or wait for it a while; finish what is whole."""
        try:
            if self._pipeline is not None and self._pipeline.task is not None:
                self._go_on_through(self._pipeline, self._pipeline.task)
            else:
                self._work_on_next()
        except Abandoned:
            self._model.gradients.zero_()
            if self._pipeline is not None:
                self._pipeline.give_up()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()
        if self._pipeline is not None:
            self._pipeline.close()

    # -- it begins -----------------------------------------------------------------------------------------------------

    def _work_on_next(self) -> None:
        """Wait for the next micro-batch and compute it; finish what is whole where none comes."""
        start_s, begin_s = time.perf_counter(), now_s()
        try:
            fetched = self._ready.get(timeout=LOOK_S)
        except queue.Empty:
            fetched = None
        waited_s = time.perf_counter() - start_s
        if fetched is None:
            self._idle.add(begin_s, waited_s)
            self._dense.catch_up(self._is_now)
            self._finish_whole()
        elif self._wanted(fetched.micro_batch.task):
            self._begin(fetched, begin_s, waited_s)

    def _begin(self, fetched: FetchedBatch, begin_s: float, waited_s: float) -> None:
        """Compute a micro-batch that was waited for, or send it on its way through the stages."""
        if not self._inbox.begins(fetched.micro_batch):
            self._finish_whole()
            return
        if fetched.micro_batch.number == 0:
            self._dense.begin_task()
        self._account(fetched, begin_s, waited_s)
        self._compute(fetched)

    def _account(self, fetched: FetchedBatch, begin_s: float, waited_s: float) -> None:
        """Tell waiting for others from waiting for one's own fetch."""
        task, own_s = fetched.micro_batch.task, min(waited_s, fetched.after_s)
        if fetched.micro_batch.number == 0:
            task.fixed_s += own_s
        else:
            task.compute_s += own_s
        if 0 < task.num_assigned <= fetched.micro_batch.number:
            task.piece_s += own_s
            task.piece_wait_s += waited_s - own_s  # without the piece there would have been nothing to wait for
        self._idle.add(begin_s, waited_s - own_s)
        idle_s, spans = self._idle.take()
        task.wait_s += idle_s
        task.data_s += min(waited_s, fetched.read_s)
        task.read_s += fetched.core_s
        task.spans += spans

    # -- it is computed ------------------------------------------------------------------------------------------------

    def _compute(self, fetched: FetchedBatch) -> None:
        """Compute the gradients of a micro-batch and pass them on; ask for more work while that goes on."""
        task, samples = fetched.micro_batch.task, fetched.batch.num_samples
        start_s, begin_s = time.perf_counter(), now_s()
        self._sender.release(task)
        pull = self._dense.pull
        if pull is not None:
            pull.begin(fetched.arriving, lambda: self._wanted(task))
        if fetched.dense is not None:
            self._model.values.copy_(torch.from_numpy(fetched.dense), non_blocking=True)
            task.fixed_s += time.perf_counter() - start_s
            start_s = time.perf_counter()
        if self._inbox.should_ask_for_more(fetched.micro_batch):
            self._ask_for_more(task, samples)
        if self._pipeline is not None:
            if samples:
                self._pipeline.send(fetched, self._fetch_for(task), lambda: self._wanted(task))
            else:
                self._pass_on(task, [])
            return
        if self._norms is not None:
            self._norms.begin(task, has_samples=samples > 0)
        gradients = self._gradients(fetched) if samples else []
        waited_s = (pull.end() if pull is not None else 0.0) + (self._norms.end() if self._norms is not None else 0.0)
        seconds = time.perf_counter() - start_s - waited_s
        self._inbox.throughput.add(samples=samples, compute_s=seconds, fetch_s=fetched.fetch_s)
        task.add(fetched.micro_batch.number, samples, seconds)
        task.spans.append(Span("compute", begin_s, now_s(), task.assign.step))
        self._pass_on(task, gradients)

    def _ask_for_more(self, task: Task, samples: int) -> None:
        """Ask before the last known micro-batch is computed, so that the answer is there in time."""
        assign, throughput = task.assign, self._inbox.throughput
        self._tell(
            More(
                generation=assign.generation,
                step=assign.step,
                task=assign.task,
                busy_s=throughput.busy_s(samples),
                fetch_s=throughput.fetch_s,
            )
        )

    def _gradients(self, fetched: FetchedBatch) -> RowGradients:
        """Return the gradients of rows; those of dense parameters add up."""
        task = fetched.micro_batch.task
        computed = self._computer.compute(
            fetched.batch,
            fetched.rows,
            self._fetch_for(task),
            where=f"on {self._name} at step {task.assign.step}",
            before_backward=lambda: self._dense.begin_last(task) if self._inbox.is_last(task) else None,
        )
        self._count(fetched, computed)
        return computed.rows

    def _fetch_for(self, task: Task) -> Fetch:
        """Return what gets rows that a model asks for in the middle of a task."""
        assign, version = task.assign, task.assign.step if self._is_sync else 0
        return lambda look_up: self._connections.pull(
            assign.generation, version, [look_up], dense=False, wanted=lambda: self._wanted(task)
        ).rows[0]

    def _count(self, fetched: FetchedBatch, computed: Computed) -> None:
        """Add what came of a micro-batch to its task and to the figures."""
        task = fetched.micro_batch.task
        if self._is_private:  # how many samples a step drew, and what they came to, is nobody's to know
            task.samples += fetched.micro_batch.last - fetched.micro_batch.first
            return
        task.samples += fetched.batch.num_samples
        task.loss += computed.loss
        if self._scores is not None and computed.scores is not None:
            self._scores.add(computed.scores, fetched.batch.labels)

    def _go_on_through(self, pipeline: Pipeline, task: Task) -> None:
        """Take in what comes back of the task under way, and begin what is fetched where there is room."""
        begin_s = now_s()
        fetched: FetchedBatch | None = None
        if not pipeline.is_full:
            with suppress(queue.Empty):
                fetched = self._ready.get_nowait()
        while fetched is not None and fetched.micro_batch.task is not task and pipeline.task is not None:
            self._take_in(pipeline, task, RETURN_S)  # the next task begins when this one is whole
        if fetched is not None and pipeline.task is None:
            self._finish_whole()
        if fetched is not None and self._wanted(fetched.micro_batch.task):
            self._begin(fetched, begin_s, 0.0)
        self._take_in(pipeline, task, 0.0 if fetched is not None else RETURN_S)

    def _take_in(self, pipeline: Pipeline, task: Task, wait_s: float) -> None:
        """Take in micro-batches that have come back through the stages."""
        if not self._wanted(task):
            raise Abandoned
        for fetched, computed in pipeline.returned(wait_s):
            self._count(fetched, computed)
            self._pass_on(fetched.micro_batch.task, computed.rows)

    # -- it ends -------------------------------------------------------------------------------------------------------

    def _pass_on(self, task: Task, gradients: RowGradients) -> None:
        """Pass on the gradients of a micro-batch of a task, which may be its last."""
        progress = self._inbox.computed(task)
        if progress is TaskProgress.WHOLE:
            self._finish(task, gradients)
        elif progress is TaskProgress.GOES_ON:
            self._sender.put(task, gradients)
        else:
            self._sender.hold(task, gradients)
            self._tell(RanOut(generation=task.assign.generation))
            self._finish_whole()  # it may have become known in between

    def _finish_whole(self) -> None:
        """Finish tasks that turned out to be whole after their last micro-batch was computed."""
        while (task := self._inbox.next_whole()) is not None:
            self._finish(task, None)

    def _finish(self, task: Task, gradients: RowGradients | None) -> None:
        """Pass on the last gradients of a task (None: those that were held), the dense ones with them."""
        if not self._inbox.take(task):
            return
        if self._pipeline is not None:
            self._pipeline.finish(task, lambda: self._wanted(task))
        dense, counts = self._dense.gradients_to_push(), self._scores.take() if self._scores is not None else ()
        self._sender.put_last(task, gradients, dense, counts)
        span = self._dense.finish(task, lambda: self._wanted(task))
        if span is not None:
            self._idle.add_span(span)
