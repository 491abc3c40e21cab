"""The process of a worker: its main thread computes, others fetch, send and talk."""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import (
    Apply,
    Assign,
    Close,
    Extend,
    JoinRing,
    Message,
    More,
    RanOut,
    Recall,
    Reset,
    SaveDense,
    Span,
)
from dovetail.runtime.model.build import build_graph
from dovetail.runtime.process import Process
from dovetail.runtime.worker.control import Control, free_memory_bytes
from dovetail.runtime.worker.fetch import Fetcher
from dovetail.runtime.worker.idle_time import IdleTime
from dovetail.runtime.worker.keys import LookUp
from dovetail.runtime.worker.lines import Abandoned, lines_of, now_s
from dovetail.runtime.worker.memory import saved_bytes
from dovetail.runtime.worker.model import ServedModel
from dovetail.runtime.worker.ring_member import RingMember
from dovetail.runtime.worker.row_source import Rows
from dovetail.runtime.worker.score_counts import ScoreCounts
from dovetail.runtime.worker.send import Gradients, Sender
from dovetail.runtime.worker.task import Fetched, Part, Task, cut
from dovetail.spec.run import RunWorker

RowGradients = list[tuple[LookUp, NDArray[np.float32]]]
FIRST_PART = 4
"""The first micro-batch of a step is so many times smaller: everyone asks the servers at once, and computes sooner."""
FREE_KNOWN_S = 0.4
"""How long what is known of the free memory holds: asking costs a slow worker milliseconds."""
PACE_FOLLOWED = 0.3
"""How much of the way to what was last seen the estimates of one's own pace go."""
SWITCH_S = 0.0005
"""How soon a thread that wants to run Python may: the threads of a worker take turns within one step."""


class WorkerLoop:
    """One worker."""

    def __init__(self, process: Process, settings: RunWorker, source: Source, own: nn.Module | None) -> None:
        """Build the model and the threads' parts."""
        sys.setswitchinterval(SWITCH_S)
        torch.set_num_threads(settings.threads)
        self._process, self._settings = process, settings
        run = process.blueprint.run
        device = torch.device(settings.device)
        self._rows = Rows(process.blueprint.num_servers, device)
        self._model = ServedModel(build_graph(run, source.schema, own), self._rows, device)
        self._micro_batch = run.training.micro_batch
        self._scores = ScoreCounts() if process.blueprint.metric == "auc" else None
        self._lock = threading.Lock()
        self._tasks: dict[tuple[int, int], Task] = {}
        self._generation = 0
        self._held: tuple[Task, RowGradients] | None = None
        self._idle = IdleTime()
        self._free_bytes, self._free_known_s = 0, -math.inf
        self._sample_s = 0.0
        self._fetch_s = 0.0
        self._control = Control(process, self._heed, self._most_samples)
        self._ring = RingMember(process, self._model, self._control.tell) if run.training.dense == "ring" else None
        self._fetcher = Fetcher(process, source, self._model, self._wanted)
        self._sender = Sender(process, self._wanted, self._control.tell)
        self._lines = lines_of(process, "compute")
        self._wake: queue.Queue[Fetched | None] = self._fetcher.ready  # type: ignore[assignment]

    def run(self) -> None:
        """Compute until told to stop."""
        threads = [
            threading.Thread(target=self._guarded, args=(part.run,), name=f"dovetail-{name}")
            for name, part in (("control", self._control), ("fetch", self._fetcher), ("send", self._sender))
        ]
        for thread in threads:
            thread.start()
        self._guarded(self._compute)
        self._control.stopped.set()
        self._fetcher.parts.put(None)
        self._sender.gradients.put(None)
        for thread in threads:
            thread.join(10)
        self._lines.close()
        if self._control.problem is not None:
            raise self._control.problem

    def _guarded(self, work: Callable[[], Any]) -> None:
        """Run a thread's work; what goes wrong ends the worker, with a word to the coordinator."""
        try:
            work()
        except DovetailError as problem:
            self._control.fail(problem)
        except Exception as problem:
            self._control.fail(
                TrainingError(
                    f"{type(problem).__name__}: {problem}",
                    hint=f"its traceback is in {self._process.folder}/logs/{self._process.name}.log; "
                    "`dovetail train --in-process` stops where the model fails",
                )
            )
            raise

    # -- messages of the coordinator, in the control thread ------------------------------------------------------------

    def _heed(self, message: Message) -> None:
        """Do what the coordinator says."""
        if isinstance(message, Reset):
            with self._lock:
                self._generation = message.generation
                self._control.generation = message.generation
                for thrown_away in self._tasks.values():
                    thrown_away.recalled = True  # the generation may be the same: it is handed out anew
                self._tasks.clear()
            if self._ring is not None:
                self._ring.reset(message.generation)
        elif isinstance(message, Assign):
            self._take(message)
        elif isinstance(message, Extend):
            with self._lock:
                task = self._tasks.get((message.step, message.task))
                if task is not None and message.generation == self._generation:
                    task.asked_for_more = False
                    self._add_parts(task, message.first, message.last)
        elif isinstance(message, Recall):
            with self._lock:
                task = self._tasks.pop((message.step, message.task), None)
                if task is not None:
                    task.recalled = True
        elif isinstance(message, JoinRing | Apply | SaveDense) and self._ring is not None:
            self._ring.heed(message)
            self._nudge()
        elif isinstance(message, Close):
            with self._lock:
                task = self._tasks.get((message.step, message.task))
                if task is not None and message.generation == self._generation:
                    task.closed = True
            self._nudge()

    def _take(self, message: Assign) -> None:
        """Begin a task."""
        with self._lock:
            if message.generation != self._generation:
                return
            task = Task(message, closed=not message.is_open)
            self._tasks[message.step, message.task] = task
            for first, last in message.ranges:
                self._add_parts(task, first, last, begins=task.parts_known == 0)
            task.main_parts = task.parts_known
            has_parts = task.parts_known > 0
            task.asked_for_more = task.asked_for_more or not has_parts
        if not has_parts and message.is_open:
            self._control.tell(More(generation=message.generation, step=message.step, task=message.task))
        elif not has_parts:
            self._nudge()

    def _add_parts(self, task: Task, first: int, last: int, *, begins: bool = False) -> None:
        """Have positions fetched, in micro-batches that fit the memory; those that a step `begins` with are small."""
        most = self._most_at_once()
        small = max(1, most // FIRST_PART) if begins and task.assign.is_open else None
        for begin, end in cut(first, last, most, first_part=small):
            self._fetcher.parts.put(Part(task, task.parts_known, begin, end))
            task.parts_known += 1

    def _nudge(self) -> None:
        """Have the main thread look at its task again."""
        with suppress(queue.Full):  # then it has something to look at already
            self._wake.put_nowait(None)

    def _wanted(self, task: Task) -> bool:
        """Say whether work on a task still counts."""
        return task.assign.generation == self._generation and not task.recalled and not self._control.stopped.is_set()

    # -- memory --------------------------------------------------------------------------------------------------------

    def _most_samples(self) -> int | None:
        """Return how many samples fit the free memory; None before it is known what one takes."""
        each, now_s = self._model.bytes_per_sample, time.monotonic()
        if not each:
            return None
        if now_s - self._free_known_s > FREE_KNOWN_S:
            self._free_bytes, self._free_known_s = free_memory_bytes(self._settings.memory_bytes), now_s
        return max(1, int(self._free_bytes * 0.8 / each))

    def _most_at_once(self) -> int:
        """Return how many samples a micro-batch may have: those being fetched, computed and sent fit the memory."""
        most = self._most_samples()
        return self._micro_batch if most is None else max(1, min(self._micro_batch, most // 4))

    # -- the main thread -----------------------------------------------------------------------------------------------

    def _compute(self) -> None:
        """Compute what is fetched; push what is whole."""
        while not self._control.stopped.is_set():
            start_s, begin_s = time.perf_counter(), now_s()
            try:
                fetched: Fetched | None = self._wake.get(timeout=0.1)
            except queue.Empty:
                fetched = None
            waited_s = time.perf_counter() - start_s
            if fetched is None:
                self._idle.add(begin_s, waited_s)
                if self._ring is not None:
                    self._ring.join(lambda generation: generation == self._generation)
                self._finish()
            elif self._wanted(fetched.part.task):
                self._account(fetched, begin_s, waited_s)
                try:
                    self._compute_part(fetched)
                except Abandoned:
                    self._model.gradients.zero_()

    def _account(self, fetched: Fetched, begin_s: float, waited_s: float) -> None:
        """Tell waiting for others from waiting for one's own fetch."""
        task, own_s = fetched.part.task, min(waited_s, fetched.fetch_s)
        if fetched.part.number == 0:
            task.fixed_s += own_s
            self._model.gradients.zero_()  # whatever an abandoned task left behind
        else:
            task.compute_s += own_s
        self._idle.add(begin_s, waited_s - own_s)
        idle_s, spans = self._idle.take()
        task.wait_s += idle_s
        task.spans += spans

    def _compute_part(self, fetched: Fetched) -> None:
        """Compute the gradients of a micro-batch; ask for more work while that goes on."""
        task, assign = fetched.part.task, fetched.part.task.assign
        start_s, begin_s = time.perf_counter(), now_s()
        held = self._take_held(task)
        if held:
            self._sender.gradients.put(Gradients(task, held, None, last=False))
        if fetched.dense is not None:
            self._model.values.copy_(torch.from_numpy(fetched.dense))
            task.fixed_s += time.perf_counter() - start_s
            start_s = time.perf_counter()
        self._ask_for_more(task, fetched)
        gradients = self._gradients(fetched)
        seconds = time.perf_counter() - start_s
        if fetched.batch.num_samples:
            self._sample_s = _followed(self._sample_s, seconds / fetched.batch.num_samples)
        self._fetch_s = _followed(self._fetch_s, fetched.fetch_s)
        task.compute_s += seconds
        if fetched.part.number >= task.main_parts:
            task.num_pieces += 1
            task.piece_samples += fetched.batch.num_samples
            task.piece_s += seconds
        task.spans.append(Span("compute", begin_s, now_s(), assign.step))
        with self._lock:
            task.parts_computed += 1
            whole = task.is_whole
            ran_out = task.parts_computed == task.parts_known and not task.closed
        if whole:
            self._push_last(task, gradients)
        elif ran_out:
            self._held = (task, gradients)  # until it is known whether they are the last: one message less
            self._control.tell(RanOut(generation=assign.generation))
            self._finish()  # it may have become known in between
        elif gradients:
            self._sender.gradients.put(Gradients(task, gradients, None, last=False))

    def _ask_for_more(self, task: Task, fetched: Fetched) -> None:
        """Ask before the last known part of an open task is computed, so that the answer is there in time."""
        with self._lock:
            runs_out = task.parts_computed == task.parts_known - 1
            asks = runs_out and not task.closed and not task.asked_for_more
            task.asked_for_more = task.asked_for_more or asks
        if asks:
            assign = task.assign
            self._control.tell(
                More(
                    generation=assign.generation,
                    step=assign.step,
                    task=assign.task,
                    busy_s=fetched.batch.num_samples * self._sample_s,
                    fetch_s=self._fetch_s,
                )
            )

    def _gradients(self, fetched: Fetched) -> RowGradients:
        """Run the model forward and backward; return the gradients of rows, those of dense parameters add up."""
        task, batch = fetched.part.task, fetched.batch
        if not batch.num_samples:
            return []
        generation = task.assign.generation
        version = task.assign.step if self._process.blueprint.run.training.mode == "sync" else 0
        self._rows.begin(
            fetched.rows,
            lambda look_up: self._lines.pull(
                generation, version, [look_up], dense=False, wanted=lambda: self._wanted(task)
            ).rows[0],
        )
        batch = batch if self._model.device.type == "cpu" else batch.to(self._model.device)
        if self._model.bytes_per_sample:
            loss, scores = self._model.loss_and_scores(batch)
        else:
            with saved_bytes(self._model.values) as saved:
                loss, scores = self._model.loss_and_scores(batch)
            rows_bytes = 2 * sum(rows.nbytes for _, rows in fetched.rows)
            self._model.bytes_per_sample = (saved.total + batch.num_bytes + rows_bytes) / batch.num_samples
        total = float(loss.detach())
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss is {total} on {self._process.name} at step {task.assign.step}",
                hint="lower the learning rate, clip gradients, or look for broken samples",
            )
        if self._ring is not None and task.closed and task.parts_computed == task.parts_known - 1:
            self._ring.overlap()
        loss.backward()  # type: ignore[no-untyped-call]
        task.samples += batch.num_samples
        task.loss += total
        if self._scores is not None and scores is not None:
            self._scores.add(scores, batch.labels)
        found = [(leaf.wanted, leaf.gradients) for leaf in self._rows.leaves]
        return [(wanted, gradients) for wanted, gradients in found if gradients is not None]

    def _finish(self) -> None:
        """Push tasks that turned out to be whole after their last part was computed."""
        while True:
            with self._lock:
                first = min(self._tasks.values(), key=lambda task: task.assign.step, default=None)
                if first is None or not first.is_whole:
                    return
            self._push_last(first, self._take_held(first))

    def _take_held(self, task: Task) -> RowGradients:
        """Return the gradients of a task that wait to be sent."""
        held, self._held = self._held, None
        return held[1] if held is not None and held[0] is task else []

    def _push_last(self, task: Task, gradients: RowGradients) -> None:
        """Send the last gradients of a task, the dense ones with them."""
        with self._lock:
            if self._tasks.pop((task.assign.step, task.assign.task), None) is None:
                return
        dense = None
        if self._ring is None and len(self._model.gradients):
            dense = self._model.gradients.cpu().numpy().copy()
            self._model.gradients.zero_()
        counts = self._scores.take() if self._scores is not None else ()
        self._sender.gradients.put(Gradients(task, gradients, dense, last=True, counts=counts))
        if self._ring is not None:
            span = self._ring.reduce(task, lambda: self._wanted(task))
            if span is not None:
                self._idle.add_span(span)


def _followed(value: float, seen: float) -> float:
    """Return an estimate that goes part of the way to what was seen."""
    return seen if not value else value + PACE_FOLLOWED * (seen - value)


def work(process: Process, settings: RunWorker, source: Source, own: nn.Module | None = None) -> None:
    """Run a worker until the run is over."""
    WorkerLoop(process, settings, source, own).run()
