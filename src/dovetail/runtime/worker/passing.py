"""Passing on: what came of micro-batches goes to the servers, and a task that is whole is finished."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.runtime.messages import Message, More, RanOut
from dovetail.runtime.worker.compute import Computed
from dovetail.runtime.worker.dense_sync import DenseSync
from dovetail.runtime.worker.idle_time import IdleTime
from dovetail.runtime.worker.inbox import Inbox, Progress
from dovetail.runtime.worker.pace import Pace
from dovetail.runtime.worker.pipeline import Pipeline
from dovetail.runtime.worker.score_counts import ScoreCounts
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.task import Fetched, RowGradients, Task


class Passing:
    """From computed micro-batches to finished tasks; the main thread's."""

    def __init__(
        self,
        inbox: Inbox,
        sender: Sender,
        dense: DenseSync,
        scores: ScoreCounts | None,
        idle: IdleTime,
        pace: Pace,
        *,
        pipeline: Pipeline | None,
        tell: Callable[[Message], None],
        wanted: Callable[[Task], bool],
    ) -> None:
        """Keep the parts of a worker that this goes through; `tell` tells the coordinator."""
        self._inbox, self._sender, self._dense, self._scores = inbox, sender, dense, scores
        self._idle, self._pace, self._pipeline = idle, pace, pipeline
        self._tell, self._wanted = tell, wanted
        sender.were_under_way = idle.add_own

    def account(self, fetched: Fetched, begin_s: float, waited_s: float) -> None:
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
        task.spans += spans

    def ask_for_more(self, task: Task, samples: int) -> None:
        """Ask before the last known micro-batch is computed, so that the answer is there in time."""
        assign = task.assign
        self._tell(
            More(
                generation=assign.generation,
                step=assign.step,
                task=assign.task,
                busy_s=self._pace.busy_s(samples),
                fetch_s=self._pace.fetch_s,
            )
        )

    def count(self, fetched: Fetched, computed: Computed) -> None:
        """Add what came of a micro-batch to its task and to the figures."""
        task = fetched.micro_batch.task
        task.samples += fetched.batch.num_samples
        task.loss += computed.loss
        if self._scores is not None and computed.scores is not None:
            self._scores.add(computed.scores, fetched.batch.labels)

    def pass_on(self, task: Task, gradients: RowGradients) -> None:
        """Pass on the gradients of a micro-batch of a task, which may be its last."""
        progress = self._inbox.computed(task)
        if progress is Progress.WHOLE:
            self._finish(task, gradients)
        elif progress is Progress.GOES_ON:
            self._sender.put(task, gradients)
        else:
            self._sender.hold(task, gradients)
            self._tell(RanOut(generation=task.assign.generation))
            self.finish_whole()  # it may have become known in between

    def finish_whole(self) -> None:
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
