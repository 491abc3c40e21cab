"""From computed micro-batches to finished tasks, and the time in which a worker had nothing to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dovetail.runtime.messages import Message, More, RanOut, Span
from dovetail.runtime.worker.compute.computer import Computed
from dovetail.runtime.worker.dense.sync import DenseSync
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.stages.pipeline import Pipeline
from dovetail.runtime.worker.tasks.inbox import Inbox, TaskProgress, Throughput
from dovetail.runtime.worker.tasks.score_counts import ScoreCounts
from dovetail.runtime.worker.tasks.task import FetchedBatch, RowGradients, Task

SHORTEST_S = 0.0005
"""Shorter waits count, and are not drawn."""
GAP_S = 0.001
"""Waits that are closer to each other than this are drawn as one."""


class IdleTime:
    """Seconds without work since they were last taken, and when they were.

    The thread that computes notes when it waits; while its last gradients are on their way it is not idle, though it
    computes nothing: that is a part of a task, as is fetching parameters.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._seconds = 0.0
        self._waits: list[tuple[float, float]] = []
        self._waits_before: list[tuple[float, float]] = []
        """Of the time before: what went on then may be told only now."""
        self._spans: list[Span] = []
        self._own: deque[tuple[float, float]] = deque()

    def add(self, begin_s: float, seconds: float) -> None:
        """Note a wait that began at `begin_s`; waits one after the other are drawn as one."""
        if seconds <= 0:
            return
        self._seconds += seconds
        self._waits.append((begin_s, begin_s + seconds))
        if seconds < SHORTEST_S:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and last.kind == "wait" and begin_s - last.end_s < GAP_S:
            self._spans[-1] = Span("wait", last.start_s, begin_s + seconds, last.step)
        else:
            self._spans.append(Span("wait", begin_s, begin_s + seconds, 0))

    def add_span(self, span: Span) -> None:
        """Note a wait of another kind: for the other members of a ring."""
        self._seconds += span.end_s - span.start_s
        self._spans.append(span)

    def add_own(self, begin_s: float, end_s: float) -> None:
        """Note when the worker was at something else than computing that is its own; from any thread."""
        self._own.append((begin_s, end_s))

    def take(self) -> tuple[float, list[Span]]:
        """Return what there was, and start anew."""
        own_s = 0.0
        while self._own:
            begin_s, end_s = self._own.popleft()
            for first_s, last_s in (*self._waits_before, *self._waits):
                own_s += max(0.0, min(end_s, last_s) - max(begin_s, first_s))
        taken = max(0.0, self._seconds - own_s), self._spans
        self._seconds, self._waits_before, self._waits, self._spans = 0.0, self._waits, [], []
        return taken


class TaskLifecycle:
    """From computed micro-batches to finished tasks; the main thread's."""

    def __init__(
        self,
        inbox: Inbox,
        sender: Sender,
        dense: DenseSync,
        scores: ScoreCounts | None,
        idle: IdleTime,
        pace: Throughput,
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

    def account(self, fetched: FetchedBatch, begin_s: float, waited_s: float) -> None:
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

    def count(self, fetched: FetchedBatch, computed: Computed) -> None:
        """Add what came of a micro-batch to its task and to the figures."""
        task = fetched.micro_batch.task
        task.samples += fetched.batch.num_samples
        task.loss += computed.loss
        if self._scores is not None and computed.scores is not None:
            self._scores.add(computed.scores, fetched.batch.labels)

    def pass_on(self, task: Task, gradients: RowGradients) -> None:
        """Pass on the gradients of a micro-batch of a task, which may be its last."""
        progress = self._inbox.computed(task)
        if progress is TaskProgress.WHOLE:
            self._finish(task, gradients)
        elif progress is TaskProgress.GOES_ON:
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
