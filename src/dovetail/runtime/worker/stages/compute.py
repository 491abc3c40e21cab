"""Computing at a later stage: its blocks forward and back, one micro-batch at a time.

Its dense parameters are fetched from servers for each step, or kept by its workers in a ring.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dovetail.runtime.messages import Forward, Returned, Span
from dovetail.runtime.model.parameters import sparse_modules
from dovetail.runtime.model.stages import Cut
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.computer import finite, gradients_of
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.dense.ring import RingSync
from dovetail.runtime.worker.links.servers import Floats, ServerConnections
from dovetail.runtime.worker.rows.keys import LookUp
from dovetail.runtime.worker.stages.activations import ActivationTransport, add_gradients, run_back
from dovetail.runtime.worker.stages.batches import StageBatch, TaskKey, Wanted, concatenated, task_of
from dovetail.runtime.worker.stages.requests import StageRequests
from dovetail.runtime.worker.tasks.spans import now_s
from dovetail.transport import Sendable


class StageDense(Protocol):
    """What computing at a stage asks of them; the main thread's. Whoever need not do a thing leaves it out."""

    def are_there(self, message: Forward) -> bool:
        """Say whether a micro-batch can be computed: its step's parameters are here, or can be fetched."""
        ...

    def begin_generation(self) -> None:
        """Throw away what is under way."""
        ...

    def prepare(self, message: Forward, wanted: Wanted) -> None:
        """Have the parameters be those that a micro-batch is computed with."""
        return

    def add_up(self, task: TaskKey) -> None:
        """Have the gradients of the backward pass that follows count for a task."""
        return

    def take_sum(self, task: TaskKey) -> Tensor | None:
        """Return the gradients of a task, and forget them; None where there are none, or nobody asks for them."""
        return None


class StageRing(StageDense):
    """The stage's workers keep them, and add up those of a whole step: there is nothing to fetch or to hand out."""

    def __init__(self, ring: RingSync, model: ServedModel) -> None:
        """Keep this worker's place in the ring."""
        self._ring, self._model = ring, model

    def are_there(self, message: Forward) -> bool:
        """Say whether this worker is in the ring, and the step before has been applied here too."""
        return self._ring.has_step(message.generation, message.step)

    def begin_generation(self) -> None:
        """Forget what was added up."""
        self._model.gradients.zero_()


class TaskSums(StageDense):
    """Servers keep them: fetched with the first micro-batch of a step, and gradients added up task by task.

    Without steps (ssp and async), they are fetched for every task.
    """

    def __init__(
        self,
        model: ServedModel,
        cut: Cut,
        connections: ServerConnections,
        *,
        sync: bool,
        has_out: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keep the connections to the servers; `has_out` says whether micro-batches are between their two passes."""
        self._model, self._cut, self._connections, self._sync, self._has_out = model, cut, connections, sync, has_out
        self._fetched_for: int | TaskKey | None = None
        self._sums: dict[TaskKey, Tensor] = {}
        """Gradients of tasks under way, but for the one whose sum is in the model."""
        self._summed: TaskKey | None = None
        """The task whose gradients add up in the model."""

    def are_there(self, message: Forward) -> bool:
        """Say that they can be fetched: not while others are to go back with those that they went forward with."""
        return self._use_of(message) == self._fetched_for or not self._has_out()

    def _use_of(self, message: Forward) -> int | TaskKey:
        """Return what a fetch serves: a step, or a task where there are none."""
        return message.step if self._sync else task_of(message)

    def prepare(self, message: Forward, wanted: Wanted) -> None:
        """Fetch them, where those of another step are here."""
        use = self._use_of(message)
        if use == self._fetched_for or not len(self._model.values):
            return
        version = message.step if self._sync else 0
        answer = self._connections.pull(message.generation, version, [], dense=True, wanted=wanted)
        if answer.dense is not None:
            self._model.values.copy_(torch.from_numpy(answer.dense[self._cut.dense]))
        self._fetched_for = use

    def add_up(self, task: TaskKey) -> None:
        """Have the model's gradients be those of a task: what was in it goes to the sums."""
        if task == self._summed:
            return
        self._put_aside()
        # A worker of the first stage has one task at a time: nobody asks for what it did of others any more.
        self._sums = {other: total for other, total in self._sums.items() if other[2] != task[2] or other == task}
        if task in self._sums:
            self._model.gradients.copy_(self._sums.pop(task))
        self._summed = task

    def take_sum(self, task: TaskKey) -> Tensor | None:
        """Return the gradients of a task, and forget them."""
        self._put_aside()
        return self._sums.pop(task, None)

    def _put_aside(self) -> None:
        """Have the model's gradients be those of no task."""
        if self._summed is not None:
            self._sums[self._summed] = self._model.gradients.clone()
            self._model.gradients.zero_()
            self._summed = None

    def begin_generation(self) -> None:
        """Throw away what is under way."""
        self._sums.clear()
        self._summed = self._fetched_for = None
        self._model.gradients.zero_()


Packed = dict[int, list[Sendable]]
"""By the stage that it goes to."""
SCORES = -1


class StageComputer:
    """Some consecutive blocks of a model, run for the micro-batches that come to them."""

    def __init__(
        self,
        process: Process,
        cut: Cut,
        model: ServedModel,
        connections: ServerConnections,
        requests: StageRequests,
        *,
        reply: Callable[..., bool],
        wanted: Callable[[], bool],
        dense: StageDense,
        transport: ActivationTransport,
    ) -> None:
        """Keep the model, and the connections to servers and later stages; `reply` answers an envelope."""
        graph = model.layer_graph
        self._name, self._graph, self._cut, self._model = process.name, graph, cut, model
        self._connections, self._requests = connections, requests
        self._is_last = cut.number == len(process.blueprint.stages) - 1
        self._reply, self._wanted, self._dense, self._transport = reply, wanted, dense, transport
        tables = {id(layer) for each in sparse_modules(graph) for layer in each.layers}
        modules = [module for block in graph.blocks[cut.first : cut.last + 1] for module in block.module.modules()]
        self.joins = self._is_last and not any(id(module) in tables for module in modules)
        """Whether several micro-batches may be computed at once: nothing is looked up for them."""
        self._keeps_spans = process.blueprint.timeline
        self.spans: list[Span] = []
        """For the timeline; whoever tells the coordinator of them takes them out."""
        self._computed: deque[tuple[Sequence[StageBatch], list[Packed], Timer]] = deque()
        """Handed out both ways, and not answered yet."""

    def compute(self, batches: Sequence[StageBatch]) -> bool:
        """Go on with a micro-batch, or with several at once; True where they have been here, forward and back.

        `answer_done` answers them then. On a GPU this only hands out the work: the next micro-batch can be handed out
        while this one is computed.
        """
        timer = Timer(self._model.device)
        self._transport.await_copies()
        whole = concatenated(batches)
        if not whole.requests:
            self._forward(whole)
            if not self._is_last:
                self._send_on(whole)
                whole.took(self._own(timer.seconds()))
                self._note(whole, timer)
                return False
            self._turn(whole)
        else:
            self._backward(whole)
        whole.gradients = {name: tensor.grad for name, tensor in whole.inputs.items()}
        _hand_back(whole, batches)
        packed = [self._packed(batch) for batch in batches]
        timer.end()
        self._computed.append((batches, packed, timer))
        return True

    def _own(self, seconds: float) -> tuple[float, ...]:
        return (*[0.0] * self._cut.number, seconds)

    @property
    def has_computed(self) -> bool:
        """Say whether micro-batches wait to be answered."""
        return bool(self._computed)

    def answer_done(self, *, wait: bool) -> None:
        """Answer micro-batches that are computed; with `wait`, wait for one at least."""
        while self._computed and (wait or self._computed[0][2].is_over):
            batches, packed, timer = self._computed.popleft()
            self._note(batches[0], timer)
            samples = sum(batch.message.samples for batch in batches)
            for batch, arrays in zip(batches, packed, strict=True):
                batch.took(self._own(timer.seconds() * batch.message.samples / max(1, samples)))
                self._answer(batch, arrays)
            wait = False

    def _note(self, batch: StageBatch, timer: Timer) -> None:
        """Note for the timeline what was computed from when until now."""
        if self._keeps_spans:
            self.spans.append(Span("compute", timer.begun_at_s, now_s(), batch.message.step))

    def forget(self) -> None:
        """Throw away what is computed and not answered."""
        self._computed.clear()

    def _forward(self, batch: StageBatch) -> None:
        message = batch.message
        self._dense.prepare(message, self._wanted)
        rows = self._model.rows

        def fetch(look_up: LookUp) -> Floats | Tensor:
            asked = self._connections.pull(
                message.generation, message.step, [look_up], dense=False, wanted=self._wanted
            )
            return asked.rows[0]

        rows.begin([], fetch)
        graph, cut = self._graph, self._cut
        keep = {name for names in cut.outputs.values() for name in names}
        if self._is_last:
            keep |= {graph.scores, graph.blocks[-1].name}
        fields = {name: batch.fields.get(name) for name in cut.fields}
        read: Any = SimpleNamespace(**fields)
        with self._model.computing():
            outputs = graph.run(read, batch.inputs, first=cut.first, last=cut.last, keep=tuple(keep))
        batch.leaves = rows.leaves
        batch.outputs = {name: outputs[name] for name in outputs if name in keep}

    def _send_on(self, batch: StageBatch) -> None:
        message, cut = batch.message, self._cut
        for stage, names in cut.outputs.items():
            onward = Forward(
                generation=message.generation,
                step=message.step,
                task=message.task,
                head=message.head,
                flight=message.flight,
                sender=cut.number,
                route=message.route,
                samples=message.samples,
                outputs=names,
            )
            arrays = [self._transport.pack(batch.outputs[name]) for name in names]
            batch.requests[stage] = self._requests.ask(message.route[stage - 1], onward, arrays)

    def _turn(self, batch: StageBatch) -> None:
        """At the last stage: the loss, and the way back."""
        graph = self._graph
        batch.loss = loss = batch.outputs[graph.blocks[-1].name]
        batch.scores = batch.outputs.get(graph.scores, batch.inputs.get(graph.scores))
        self._dense.add_up(batch.task)
        loss.backward()  # type: ignore[no-untyped-call]

    def _backward(self, batch: StageBatch) -> None:
        """Run the backward pass with the gradients that came back."""
        gradients: dict[str, Tensor] = {}
        for stage, request in batch.requests.items():
            arrays = request.envelope.arrays if request.envelope is not None else ()
            if request.envelope is not None:
                batch.took(request.envelope.message.stages_s)
            add_gradients(gradients, batch.outputs, self._cut.outputs[stage], self._transport.unpack_all(arrays))
        self._dense.add_up(batch.task)
        run_back(batch.outputs, gradients)
        for request in batch.requests.values():  # only now: the gradients were in the memory of the envelopes
            self._requests.end(request)

    def _packed(self, batch: StageBatch) -> Packed:
        """Return what goes back to each stage, the scores with what goes to the first."""
        packed = {
            sender: [self._gradient_of(batch, name) for name in self._cut.inputs.get(sender, ())]
            for sender in batch.envelopes
        }
        if batch.scores is not None:
            packed[SCORES] = [self._transport.pack(batch.scores, exact=True)]
        return packed

    def _answer(self, batch: StageBatch, packed: Packed) -> None:
        """Send gradients to where what they are of came from; the first stage gets the rest of what came of it too.

        The first stage is answered first: what the scores lie in may be another's envelope.
        """
        where = f"on {self._name} at step {batch.message.step}"
        loss = finite(self._transport.number(batch.loss), where) if batch.loss is not None else None
        rows = gradients_of(batch.leaves)
        for sender, envelope in sorted(batch.envelopes.items()):
            arrays = packed[sender]
            if sender:
                self._reply(envelope, Returned(), arrays)
                continue
            for wanted, values in rows:
                arrays += [wanted.keys, values]
            arrays += packed.get(SCORES, [])
            returned = Returned(
                loss=loss,
                tables=tuple(wanted.table for wanted, _ in rows),
                has_scores=batch.scores is not None,
                stages_s=batch.stages_s,
            )
            self._reply(envelope, returned, arrays)

    def _gradient_of(self, batch: StageBatch, name: str) -> Sendable:
        """Return the gradient of an input; whole numbers have none."""
        tensor, gradient = batch.inputs[name], batch.gradients.get(name)
        if not tensor.requires_grad:
            return np.zeros(0, dtype=np.float32)
        return self._transport.pack(gradient if gradient is not None else torch.zeros_like(tensor))


def _hand_back(whole: StageBatch, batches: Sequence[StageBatch]) -> None:
    """Give each of several that were computed at once what came of it; the loss of all counts for the first."""
    if batches[0] is whole:
        return
    begin, samples = 0, sum(batch.message.samples for batch in batches)
    for batch in batches:
        part = slice(begin, begin + batch.message.samples)
        begin = part.stop
        batch.gradients = {name: None if each is None else each[part] for name, each in whole.gradients.items()}
        is_each = whole.scores is not None and whole.scores.shape[:1] == (samples,)
        batch.scores = whole.scores[part] if is_each else None
        if whole.loss is not None:
            batch.loss = whole.loss if batch is batches[0] else torch.zeros((), device=whole.loss.device)


class Timer:
    """How long a device computes what is handed to it between the timer's beginning and its end."""

    def __init__(self, device: torch.device) -> None:
        """Begin."""
        self._begun_s, self.begun_at_s = time.perf_counter(), now_s()
        self._ended_s: float | None = None
        self._events: Any = None
        if device.type == "cuda":
            # Whoever waits sleeps: readers and servers have work for the core.
            self._events = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            self._events[0].record(torch.cuda.current_stream(device))
            self._device = device

    def end(self) -> None:
        """End: what is handed out from now on does not count."""
        self._ended_s = time.perf_counter()
        if self._events is not None:
            self._events[1].record(torch.cuda.current_stream(self._device))

    @property
    def is_over(self) -> bool:
        """Say whether all of it is computed."""
        return self._events is None or bool(self._events[1].query())

    def seconds(self) -> float:
        """Return how long it took, once it is over."""
        if self._ended_s is None:
            self.end()
        if self._events is None:
            return (self._ended_s or 0.0) - self._begun_s
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1000
