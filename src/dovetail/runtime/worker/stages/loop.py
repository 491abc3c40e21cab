"""The process of a worker of a later stage: it runs its blocks for whoever brings it a micro-batch.

control thread   Control    signs of life; the generation
main thread      StageLoop  activations in -> blocks -> activations on; gradients in -> blocks -> gradients back
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any

import zmq
from torch import nn

from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.runtime.messages import Collect, Collected, Forward, Message, Reset, StageSpans, Stale
from dovetail.runtime.messages.senders import why_not_to_stage
from dovetail.runtime.model.stages import cuts_of
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.served_model import load_served_model
from dovetail.runtime.worker.control import Control, Waker
from dovetail.runtime.worker.dense.ring import RingSync
from dovetail.runtime.worker.links.servers import Abandoned, connect_to_servers
from dovetail.runtime.worker.stages.activations import activation_transport
from dovetail.runtime.worker.stages.batches import StageBatches
from dovetail.runtime.worker.stages.compute import StageComputer, StageDense, StageRing, TaskSums
from dovetail.runtime.worker.stages.requests import StageRequests, is_stale
from dovetail.spec.run import RunWorker
from dovetail.transport import Envelope

LOOK_MS = 100
"""How often a worker without work looks whether it should stop."""
END_S = 10.0
MOST_SPANS = 100
"""What the timeline is told of at once at most; a worker without work tells what it has."""


class StageLoop:
    """One worker of a later stage."""

    def __init__(self, process: Process, settings: RunWorker, source: Source, own: nn.Module | None) -> None:
        """Build the model and keep the stage's layers of it."""
        self._process, blueprint = process, process.blueprint
        self._model, _ = load_served_model(process, settings, source, own)
        self._cuts = cuts_of(self._model.layer_graph, blueprint)
        self._cut = self._cuts[settings.stage]
        self._connections = connect_to_servers(process, "stage")
        largest = max(cut.dense.stop - cut.dense.start for cut in self._cuts)
        self._requests = StageRequests(process, "stage-on", dense_size=largest)
        self._transport = activation_transport(blueprint, self._model.device, process.name)
        self._listener = process.listen(self._addresses(), self._transport.pin)
        self._waker = Waker()
        for socket in (self._listener.socket, self._waker.socket):
            self._requests.poller.register(socket, zmq.POLLIN)
        self._senders = process.senders()
        self._control = Control(process, self._handle, lambda: self._told, lambda: None, role="stage worker")
        self._told = 0
        """The generation that the coordinator says; the control thread writes it."""
        self._generation = 0
        self._batches = StageBatches(self._cut)
        training = blueprint.run.training
        self._ring = (
            RingSync(process, self._model, self._control.tell, part=self._cut.dense, stage=settings.stage)
            if training.dense == "ring" and len(self._model.values)
            else None
        )
        self._dense: StageDense = (
            TaskSums(
                self._model,
                self._cut,
                self._connections,
                sync=training.mode == "sync",
                has_out=lambda: self._batches.has_out,
            )
            if self._ring is None
            else StageRing(self._ring, self._model)
        )
        self._computer = StageComputer(
            process,
            self._cut,
            self._model,
            self._connections,
            self._requests,
            reply=self._listener.reply,
            wanted=self._is_wanted,
            dense=self._dense,
            transport=self._transport,
        )

        # Gradients that stay here are those of a step: of whichever task, they may be computed together.
        self._joins = self._ring is not None and self._computer.joins
        self._most_samples = training.micro_batch

    def _addresses(self) -> list[str]:
        spec = self._process.blueprint.stage_workers[self._process.name]
        return [spec.address, spec.local_address] if spec.local_address != spec.address else [spec.address]

    def run(self) -> None:
        """Compute until told to stop."""
        thread = threading.Thread(target=self._control.run, name="dovetail-control")
        thread.start()
        try:
            self._serve()
        except DovetailError as problem:
            self._control.fail(problem)
        except Exception as problem:
            self._control.fail_by(problem)
        finally:
            self._control.stopped.set()
            thread.join(END_S)
            self._connections.close()
            self._requests.close()
            self._listener.close()
            self._waker.close()
            if self._ring is not None:
                self._ring.close()
        if self._control.problem is not None:
            raise self._control.problem

    def _handle(self, message: Message) -> None:
        if isinstance(message, Reset):
            self._told = message.generation
        if self._ring is not None:
            if isinstance(message, Reset):
                self._ring.reset(message.generation)
            else:
                self._ring.handle(message)
        self._waker.wake()

    def _serve(self) -> None:
        """Take in what comes, and compute what can be."""
        while not self._control.stopped.is_set():
            self._control.pulse.rest()
            batch = self._batches.ready(self._dense.are_there)
            has_work = batch is not None or self._computer.has_computed
            for request in self._requests.answered(0 if has_work else LOOK_MS / 1000):
                if is_stale(request):
                    self._begin_generation(self._generation)
            self._waker.clear()
            while (envelope := self._listener.receive(0)) is not None:
                self._receive(envelope)
            if self._told > self._generation:
                self._begin_generation(self._told)
            if self._ring is not None:
                self._ring.catch_up(self._is_now)
            batch = self._batches.ready(self._dense.are_there)
            if batch is not None:
                self._control.pulse.beat()
                batches = [batch]
                if self._joins:
                    batches = self._batches.ready_with(batch, self._dense.are_there, self._most_samples)
                with suppress(Abandoned):
                    if self._computer.compute(batches):
                        for each in batches:
                            self._batches.remove(each)
            self._computer.answer_done(wait=batch is None)
            if len(self._computer.spans) >= MOST_SPANS or (batch is None and self._computer.spans):
                spans, self._computer.spans = self._computer.spans, []
                told = StageSpans(name=self._process.name, generation=self._generation, spans=tuple(spans))
                self._control.tell(told)

    def _is_now(self, generation: int) -> bool:
        """Say whether a generation is the one that goes on; where it has only just been told, it begins."""
        if generation == self._told > self._generation:
            self._begin_generation(generation)  # the coordinator may have called in it already: that is not lost
        return generation == self._told and self._is_wanted()

    def _is_wanted(self) -> bool:
        """Say whether what is being computed still counts."""
        self._control.pulse.beat()
        return self._told <= self._generation and not self._control.stopped.is_set()

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _receive(self, envelope: Envelope) -> None:
        message: Any = envelope.message
        reason = why_not_to_stage(self._senders, envelope.owner, message)
        if reason is None and isinstance(message, Forward):
            reason = self._why_not(message, envelope)
        if reason is not None:
            self._listener.refuse(envelope, reason)
        elif message.generation < max(self._generation, self._told):
            self._listener.reply(envelope, Stale(generation=self._generation))
        else:
            if message.generation > self._generation:
                self._begin_generation(message.generation)
            if isinstance(message, Collect):
                self._give(envelope, message)
            else:
                self._take(envelope, message)

    def _why_not(self, message: Forward, envelope: Envelope) -> str | None:
        """Return why a micro-batch is none that this stage can compute."""
        if message.sender not in self._cut.senders:
            return f"stage {message.sender} sends nothing to stage {self._cut.number}"
        if message.outputs != self._cut.inputs.get(message.sender, ()):
            return f"stage {self._cut.number} does not read {', '.join(message.outputs)} of stage {message.sender}"
        if len(envelope.arrays) != len(message.fields) + len(message.outputs):
            return f"{len(envelope.arrays)} arrays came for {len(message.fields) + len(message.outputs)}"
        if len(message.route) != len(self._cuts) - 1:
            return f"a route through {len(message.route)} stages of {len(self._cuts) - 1}"
        return None

    def _take(self, envelope: Envelope, message: Forward) -> None:
        """Keep what came of a micro-batch."""
        batch = self._batches.add(envelope)
        for name, array in zip(message.fields, envelope.arrays, strict=False):
            batch.fields[name] = self._transport.unpack(array)
        for name, array in zip(message.outputs, envelope.arrays[len(message.fields) :], strict=True):
            tensor = self._transport.unpack(array)
            batch.inputs[name] = tensor.requires_grad_(tensor.is_floating_point())

    def _give(self, envelope: Envelope, message: Collect) -> None:
        """Give the dense gradients of a task, and forget them."""
        total = self._dense.take_sum((message.step, message.task, message.head))
        self._listener.reply(envelope, Collected(), () if total is None else (self._transport.pack(total, exact=True),))

    def _begin_generation(self, generation: int) -> None:
        """Throw away what is under way."""
        self._generation = generation
        self._batches.clear()
        self._requests.give_up()
        self._computer.forget()
        self._dense.begin_generation()


def work_in_stage(process: Process, settings: RunWorker, source: Source, own: nn.Module | None = None) -> None:
    """Run a worker of a later stage until the run is over."""
    sys.setswitchinterval(0.0005)
    StageLoop(process, settings, source, own).run()
