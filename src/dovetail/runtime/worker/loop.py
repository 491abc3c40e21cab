"""The process of a worker: its main thread computes, others get inputs, pass on gradients, and talk.

control thread   Control        messages of the coordinator -> Inbox -> micro-batches
fetch thread     Fetcher        micro-batches -> samples, rows and dense parameters
dense thread     BucketPull     the dense parameters, where they come in buckets
main thread      TaskLifecycle  -> gradients
send thread      Sender         -> servers; a task that is done is reported
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from dovetail.codecs.chooser import Decision
from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.privacy.keys import SAMPLING_KEY, read_secret
from dovetail.runtime.folder import KEYS
from dovetail.runtime.masking.masks import MaskKeys
from dovetail.runtime.masking.rounding import clip_before_rounding
from dovetail.runtime.messages import Message, Reset, Tuned
from dovetail.runtime.process import Process
from dovetail.runtime.samples import Samples
from dovetail.runtime.worker.compute.computer import Computer
from dovetail.runtime.worker.compute.memory import MemoryBudget
from dovetail.runtime.worker.compute.per_sample.clipped import ClippedGradients
from dovetail.runtime.worker.compute.served_model import load_served_model
from dovetail.runtime.worker.control import Control
from dovetail.runtime.worker.dense.ring import RingSync
from dovetail.runtime.worker.dense.sync import DenseSync, through_servers
from dovetail.runtime.worker.fetch import Fetcher
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.runtime.worker.links.masked_push import MaskedPusher
from dovetail.runtime.worker.links.residual import ResidualKeeper
from dovetail.runtime.worker.links.servers import connect_to_servers
from dovetail.runtime.worker.rows.pinned_memory import PinnedMemory
from dovetail.runtime.worker.rows.row_cache import cache_of
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.tasks.inbox import Inbox
from dovetail.runtime.worker.tasks.lifecycle import TaskLifecycle
from dovetail.runtime.worker.tasks.spans import IdleTime
from dovetail.runtime.worker.tasks.task import Task
from dovetail.spec.run import RunWorker

SWITCH_S = 0.0005
"""How soon a thread that wants to run Python may: the threads of a worker take turns within one step."""
END_S = 10.0
"""How long a thread may take to end: a push under way is waited for, a server that is gone is not."""


class WorkerLoop:
    """One worker: its parts, each made with what it needs of those before it, and its threads."""

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
        self._process, blueprint = process, process.blueprint
        training = blueprint.run.training
        sampling_key = b"" if blueprint.private is None else read_secret(process.folder / KEYS, SAMPLING_KEY)
        model, cut = load_served_model(process, settings, source, own)
        private = blueprint.private
        clip = 0.0 if private is None else clip_before_rounding(blueprint, private.clip)
        clipped = None if private is None else ClippedGradients(model, clip, process.log)
        computer, idle = Computer(model, clipped), IdleTime()
        memory = MemoryBudget(settings.memory_bytes, training.micro_batch, lambda: computer.bytes_per_sample)
        self._inbox = Inbox(memory.most_at_once, undivided=training.batch_norm == "global")
        is_masked = blueprint.run.privacy.aggregation == "masked"
        masks = MaskKeys(process.name, blueprint.id, process.keys) if is_masked else None
        self._control = Control(
            process,
            self._handle,
            lambda: self._inbox.generation,
            memory.most_samples,
            leaves,
            mask_key="" if masks is None else masks.public,
        )
        tell, rests = self._control.tell, self._control.pulse.rest
        compression = LinkCompression(
            blueprint, name=process.name, is_slow=process.lanes is None, tell=self._tell_of_width
        )
        connections = connect_to_servers(process, "send", compression)
        self._sender = Sender(
            process.name,
            f"{process.name}/{process.process_id}",
            connections,
            idle,
            wanted=self._wanted,
            tell=tell,
            push_masked=None if masks is None else MaskedPusher(process, masks, connections).push,
            rests=rests,
        )
        self._dense: DenseSync = (
            RingSync(process, model, tell, part=cut.dense if cut is not None else None)
            if training.dense == "ring" and (cut is None or len(model.values))
            else through_servers(process, model, self._sender, wanted=self._wanted, rests=rests)
        )
        self._fetcher = Fetcher(
            blueprint,
            Samples(blueprint, source, sampling_key=sampling_key),
            model,
            connect_to_servers(process, "fetch", compression, PinnedMemory(model.device)),
            self._dense,
            wanted=self._wanted,
            rests=rests,
            cache=cache_of(blueprint, settings, model.device),
        )
        self._residual = ResidualKeeper(process, compression, self._sender, tell, self._is_now, leaves)
        self._tasks = TaskLifecycle(
            process,
            computer,
            self._fetcher.ready,
            self._inbox,
            self._sender,
            self._dense,
            compression,
            idle,
            tell=tell,
            wanted=self._wanted,
            is_now=self._is_now,
        )

    def run(self) -> None:
        """Compute until told to stop."""
        works = {"control": self._control.run, "fetch": self._fetcher.run, "send": self._sender.run}
        if self._dense.pull is not None:
            works["dense"] = self._dense.pull.run
        threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"dovetail-{name}")
            for name, work in works.items()
        ]
        for thread in threads:
            thread.start()
        try:
            self._guarded(self._work)
        finally:  # whatever ended it: a thread that lives on would keep the process, and its tasks
            self._control.stopped.set()
            self._fetcher.micro_batches.put(None)
            if self._dense.pull is not None:
                self._dense.pull.stop()
            self._residual.leave()
            self._sender.stop()
            for thread in threads:
                thread.join(END_S)
            self._tasks.close()
            self._dense.close()
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

    def _work(self) -> None:
        """Work on one task after the other, in the main thread."""
        while not self._control.stopped.is_set():
            self._control.pulse.rest()
            self._tasks.go_on()

    def _handle(self, message: Message) -> None:
        """Do what the coordinator says, in the control thread."""
        if self._residual.handle(message) or self._dense.handle(message):
            self._fetcher.nudge()
            return
        self._tasks.handle(message)
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

    def _tell_of_width(self, link: str, decision: Decision) -> None:
        """Tell the coordinator that a link has another width, or what that brought."""
        self._control.tell(
            Tuned(
                name=self._process.name,
                generation=self._inbox.generation,
                link=link,
                before=decision.before,
                bits=decision.bits,
                reason=decision.reason,
                gain=round(decision.gain, 3),
            )
        )

    def _wanted(self, task: Task) -> bool:
        """Say whether work on a task still counts; whoever asks gets on."""
        self._control.pulse.beat()
        return self._inbox.is_wanted(task) and not self._control.stopped.is_set()

    def _is_now(self, generation: int) -> bool:
        """Say whether a generation is the one that goes on: none does once the worker is to stop."""
        return generation == self._inbox.generation and not self._control.stopped.is_set()


def work(
    process: Process,
    settings: RunWorker,
    source: Source,
    own: nn.Module | None = None,
    leaves: Callable[[], bool] = lambda: False,
) -> None:
    """Run a worker until the run is over, or until `leaves` returns True."""
    WorkerLoop(process, settings, source, own, leaves).run()
