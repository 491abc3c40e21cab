"""The process of a worker: its main thread computes, others get inputs, pass on gradients, and talk.

control thread   Control    messages of the coordinator -> Inbox -> micro-batches
fetch thread     Fetcher    micro-batches -> samples, rows and dense parameters
main thread      Computer   -> gradients
send thread      Sender     -> servers; a task that is done is reported
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dovetail.data.source import Source
from dovetail.data.streams import stream_number
from dovetail.errors import DovetailError
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.dense.buckets import buckets_of
from dovetail.runtime.messages import Message, Reset, Span, Staff
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.frozen import read_fixed, read_newest_statistics
from dovetail.runtime.model.parameters import statistics_vector
from dovetail.runtime.model.stages import cuts_of
from dovetail.runtime.process import Process
from dovetail.runtime.samples import Samples
from dovetail.runtime.worker.compute.compiled import can_compile
from dovetail.runtime.worker.compute.computer import Computer
from dovetail.runtime.worker.compute.memory import MemoryBudget
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.compute.sync_batch_norm import SyncBatchNorms
from dovetail.runtime.worker.control import Control
from dovetail.runtime.worker.dense.buckets import BucketPull, LayerBarrier, through_servers
from dovetail.runtime.worker.dense.ring_sync import RingSync
from dovetail.runtime.worker.dense.sync import DenseSync
from dovetail.runtime.worker.fetch import Fetcher
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.runtime.worker.links.residual import ResidualKeeper
from dovetail.runtime.worker.links.servers import Abandoned, connect_to_servers, now_s
from dovetail.runtime.worker.rows.batch_rows import BatchRows, Fetch
from dovetail.runtime.worker.rows.pinned_memory import PinnedMemory
from dovetail.runtime.worker.rows.row_cache import cache_of
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.stages.feeder import PipelineFeeder
from dovetail.runtime.worker.stages.pipeline import Pipeline
from dovetail.runtime.worker.tasks.inbox import Inbox, Throughput
from dovetail.runtime.worker.tasks.lifecycle import IdleTime, TaskLifecycle
from dovetail.runtime.worker.tasks.score_counts import counts_of
from dovetail.runtime.worker.tasks.task import FetchedBatch, RowGradients, Task
from dovetail.spec.run import RunWorker

SWITCH_S = 0.0005
"""How soon a thread that wants to run Python may: the threads of a worker take turns within one step."""
LOOK_S = 0.1
"""How often a main thread without work looks whether it should stop; a nudge wakes it sooner."""
END_S = 10.0
"""How long a thread may take to end: a push under way is waited for, a server that is gone is not."""


class WorkerLoop:
    """One worker."""

    def __init__(
        self,
        process: Process,
        settings: RunWorker,
        source: Source,
        own: nn.Module | None,
        leaves: Callable[[], bool] = lambda: False,
    ) -> None:
        """Build the model and the threads' parts; once `leaves` returns True the worker goes, and says so."""
        sys.setswitchinterval(SWITCH_S)
        torch.set_num_threads(settings.threads)
        self._process, blueprint = process, process.blueprint
        training, device = blueprint.run.training, torch.device(settings.device)
        torch.manual_seed(stream_number(training.seed, f"worker/{process.name}") >> 1)
        model = build_model(blueprint.run, source.schema, own)
        read_fixed(model, process.folder, blueprint.fixed)
        read_newest_statistics(model, process.folder)
        cut = cuts_of(model, blueprint)[0] if blueprint.stages and isinstance(model, LayerGraph) else None
        self._sync, has_ring = training.mode == "sync", training.dense == "ring"
        self._model = ServedModel(
            *(model.train(), BatchRows(blueprint.num_servers, device), device),
            schema=source.schema,
            only=cut.names if cut is not None and has_ring else None,
            last=cut.last if cut is not None else None,
            precision=settings.precision,
            compiles=training.compile and can_compile(device, process.log),
        )
        self._computer = Computer(self._model)
        self._pipeline = Pipeline(process, self._model) if blueprint.stages else None
        room = MemoryBudget(settings.memory_bytes, training.micro_batch, lambda: self._computer.bytes_per_sample)
        whole_norms = training.batch_norm == "global"
        self._idle, self._pace = IdleTime(), Throughput()
        self._inbox = Inbox(room.most_at_once, undivided=whole_norms, pace=self._pace)
        self._control = Control(process, self._handle, lambda: self._inbox.generation, room.most_samples, leaves)
        self._wire = LinkCompression(blueprint, name=process.name, is_slow=process.lanes is None)
        self._sender = Sender(
            *(process.name, f"{process.name}/{process.process_id}", connect_to_servers(process, "send", self._wire)),
            wanted=self._wanted,
            tell=self._control.tell,
            rests=self._control.pulse.rest,
        )
        self._dense: DenseSync = (
            RingSync(process, self._model, self._control.tell, part=cut.dense if cut is not None else None)
            if has_ring and (cut is None or len(self._model.values))
            else through_servers(self._model, buckets_of(blueprint), self._sender)
        )
        slices = buckets_of(blueprint) if self._dense.is_fetched else ()
        lines = connect_to_servers(process, "dense", memory=PinnedMemory(device)) if slices else None
        self._gate = LayerBarrier(self._model, slices)
        self._slices = BucketPull(slices, lines, self._wanted, self._control.pulse.rest)
        self._fetcher = Fetcher(
            *(blueprint, Samples(blueprint, source), self._model),
            connect_to_servers(process, "fetch", self._wire, PinnedMemory(device)),
            wanted=self._wanted,
            dense=self._dense.is_fetched,
            rests=self._control.pulse.rest,
            cache=cache_of(blueprint, settings, device),
            slices=self._slices,
        )
        self._residual = ResidualKeeper(process, self._wire, self._sender, self._control.tell, self._is_now, leaves)
        self._lines = connect_to_servers(process, "compute", self._wire)
        self._norms = SyncBatchNorms(self._model, self._lines, process, self._wanted) if whole_norms else None
        scores = counts_of(blueprint.metrics, lambda: statistics_vector(model), has_own=self._norms is None)
        self._passing = TaskLifecycle(
            *(self._inbox, self._sender, self._dense, scores, self._idle, self._pace),
            pipeline=self._pipeline,
            tell=self._control.tell,
            wanted=self._wanted,
        )
        self._staged: PipelineFeeder | None = None
        if self._pipeline is not None:
            self._staged = PipelineFeeder(self._pipeline, self._fetcher.ready, self._passing, wanted=self._wanted)

    def run(self) -> None:
        """Compute until told to stop."""
        works = (self._control.run, self._fetcher.run, self._slices.run, self._sender.run)
        threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"dovetail-{name}")
            for name, work in zip(("control", "fetch", "dense", "send"), works, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            self._guarded(self._work)
        finally:  # whatever ended it: a thread that lives on would keep the process, and its tasks
            self._control.stopped.set()
            self._fetcher.micro_batches.put(None)
            self._slices.stop()
            self._residual.leave()
            self._sender.stop()
            for thread in threads:
                thread.join(END_S)
            self._lines.close()
            self._dense.close()
            if self._pipeline is not None:
                self._pipeline.close()
        if self._control.problem is not None:
            raise self._control.problem

    def _guarded(self, work: Callable[[], Any]) -> None:
        """Run a thread's work; what goes wrong ends the worker, with a word to the coordinator."""
        try:
            work()
        except DovetailError as problem:
            self._control.fail(problem)
        except Exception as problem:
            self._control.fail_by(problem)

    def _handle(self, message: Message) -> None:
        """Do what the coordinator says, in the control thread."""
        if self._residual.handle(message) or self._dense.handle(message):
            self._fetcher.nudge()
            return
        if isinstance(message, Staff | Reset) and self._pipeline is not None:
            self._pipeline.staff = message.stages
        news = self._inbox.handle(message)
        if isinstance(message, Reset):
            self._dense.reset(message.generation)
            self._fetcher.forget()
        for micro_batch in news.micro_batches:
            self._fetcher.micro_batches.put(micro_batch)
        for answer in [each for each in (news.answer, news.more) if each is not None]:
            self._control.tell(answer)
        if news.may_be_whole:
            self._fetcher.nudge()

    def _wanted(self, task: Task) -> bool:
        """Say whether work on a task still counts; whoever asks gets on."""
        self._control.pulse.beat()
        return self._inbox.is_wanted(task) and not self._control.stopped.is_set()

    def _is_now(self, generation: int) -> bool:
        """Say whether a generation is the one that goes on: none does once the worker is to stop."""
        return generation == self._inbox.generation and not self._control.stopped.is_set()

    # -- the main thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Compute what is fetched; finish what is whole."""
        while not self._control.stopped.is_set():
            self._control.pulse.rest()
            try:
                if self._staged is not None and self._staged.is_under_way:
                    self._staged.go_on(self._begin)
                else:
                    self._work_on_next()
            except Abandoned:
                self._model.gradients.zero_()
                if self._pipeline is not None:
                    self._pipeline.give_up()

    def _work_on_next(self) -> None:
        """Wait for the next micro-batch and compute it; finish what is whole where none comes."""
        start_s, begin_s = time.perf_counter(), now_s()
        try:
            fetched = self._fetcher.ready.get(timeout=LOOK_S)
        except queue.Empty:
            fetched = None
        waited_s = time.perf_counter() - start_s
        if fetched is None:
            self._idle.add(begin_s, waited_s)
            self._dense.catch_up(self._is_now)
            self._passing.finish_whole()
        elif self._wanted(fetched.micro_batch.task):
            self._begin(fetched, begin_s, waited_s)

    def _begin(self, fetched: FetchedBatch, begin_s: float, waited_s: float) -> None:
        """Compute a micro-batch that was waited for, or send it on its way through the stages."""
        if not self._inbox.begins(fetched.micro_batch):
            self._passing.finish_whole()
            return
        if fetched.micro_batch.number == 0:
            self._dense.begin_task()
        self._passing.account(fetched, begin_s, waited_s)
        self._compute(fetched)

    def _compute(self, fetched: FetchedBatch) -> None:
        """Compute the gradients of a micro-batch and pass them on; ask for more work while that goes on."""
        task, samples = fetched.micro_batch.task, fetched.batch.num_samples
        start_s, begin_s = time.perf_counter(), now_s()
        self._sender.release(task)
        self._gate.begin(fetched.arriving, lambda: self._wanted(task))
        if fetched.dense is not None:
            self._model.values.copy_(torch.from_numpy(fetched.dense), non_blocking=True)
            task.fixed_s += time.perf_counter() - start_s
            start_s = time.perf_counter()
        if self._inbox.should_ask_for_more(fetched.micro_batch):
            self._passing.ask_for_more(task, samples)
        if self._staged is not None:
            self._staged.take_off(fetched, self._fetch_for(task))
            return
        if self._norms is not None:
            self._norms.begin(task, has_samples=samples > 0)
        gradients = self._gradients(fetched) if samples else []
        waited_s = self._gate.end() + (self._norms.end() if self._norms is not None else 0.0)
        seconds = time.perf_counter() - start_s - waited_s
        self._pace.add(samples=samples, compute_s=seconds, fetch_s=fetched.fetch_s)
        task.add(fetched.micro_batch.number, samples, seconds)
        task.spans.append(Span("compute", begin_s, now_s(), task.assign.step))
        self._passing.pass_on(task, gradients)

    def _gradients(self, fetched: FetchedBatch) -> RowGradients:
        """Return the gradients of rows; those of dense parameters add up."""
        task, assign = fetched.micro_batch.task, fetched.micro_batch.task.assign
        computed = self._computer.compute(
            fetched.batch,
            fetched.rows,
            self._fetch_for(task),
            where=f"on {self._process.name} at step {assign.step}",
            before_backward=lambda: self._dense.begin_last(task) if self._inbox.is_last(task) else None,
        )
        self._passing.count(fetched, computed)
        return computed.rows

    def _fetch_for(self, task: Task) -> Fetch:
        """Return what gets rows that a model asks for in the middle of a task."""
        assign, version = task.assign, task.assign.step if self._sync else 0
        return lambda look_up: self._lines.pull(
            assign.generation, version, [look_up], dense=False, wanted=lambda: self._wanted(task)
        ).rows[0]


def work(
    process: Process, settings: RunWorker, source: Source, own: nn.Module | None = None,
    leaves: Callable[[], bool] = lambda: False,
) -> None:  # fmt: skip
    """Run a worker until the run is over, or until `leaves` returns True."""
    WorkerLoop(process, settings, source, own, leaves).run()
