"""The thread that sends gradients while the next micro-batch is computed."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.messages import Done, Push, Span
from dovetail.runtime.process import Process
from dovetail.runtime.worker.keys import LookUp
from dovetail.runtime.worker.lines import Abandoned, lines_of, now_s
from dovetail.runtime.worker.task import Task

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one micro-batch; with the last of a task, the dense ones of the whole task."""

    task: Task
    rows: list[tuple[LookUp, Floats]]
    dense: Floats | None
    last: bool
    counts: tuple[NDArray[np.int64], ...] = ()
    """Of clicked and other samples by score, to be passed on."""


class Sender:
    """Pushes gradients, one micro-batch after the other."""

    def __init__(
        self,
        process: Process,
        wanted: Callable[[Task], bool],
        tell: Callable[[Done, tuple[NDArray[np.int64], ...]], None],
    ) -> None:
        """Make the lines; `tell` reports a task that is done."""
        self._process, self._wanted, self._tell = process, wanted, tell
        self._lines = lines_of(process, "send")
        self.gradients: queue.SimpleQueue[Gradients | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Send until there is None."""
        try:
            while (gradients := self.gradients.get()) is not None:
                if self._wanted(gradients.task):
                    try:
                        self._send(gradients)
                    except Abandoned:
                        continue
        finally:
            self._lines.close()

    def _send(self, gradients: Gradients) -> None:
        """Push to every server; after the last part, report."""
        task, assign = gradients.task, gradients.task.assign
        start_s = now_s()
        self._lines.push(
            Push(
                generation=assign.generation,
                step=assign.step,
                task=assign.task,
                worker=f"{self._process.name}/{self._process.process_id}",
                part=task.parts_pushed,
                tables=tuple(wanted.table for wanted, _ in gradients.rows),
                dense=gradients.dense is not None,
                last=gradients.last,
                samples=task.samples,
                loss=task.loss,
                factor=assign.factor,
            ),
            gradients.rows,
            gradients.dense,
            lambda: self._wanted(task),
        )
        task.parts_pushed += 1
        end_s = now_s()
        task.spans.append(Span("send", start_s, end_s, assign.step))
        if gradients.last:
            self._tell(
                Done(
                    name=self._process.name,
                    generation=assign.generation,
                    step=assign.step,
                    task=assign.task,
                    samples=task.samples,
                    loss=task.loss,
                    compute_s=task.compute_s,
                    fixed_s=task.fixed_s + end_s - start_s,
                    wait_s=task.wait_s,
                    num_pieces=task.num_pieces,
                    piece_samples=task.piece_samples,
                    piece_s=task.piece_s,
                    spans=tuple(task.spans),
                ),
                gradients.counts,
            )
