"""Computing at a later stage: its blocks forward and back, one micro-batch at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.messages import Forward, Returned, Span
from dovetail.runtime.model.parameters import sparse_modules
from dovetail.runtime.model.stages import Cut
from dovetail.runtime.worker.compute.computer import finite, gradients_of
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.links.servers import ServerConnections, now_s
from dovetail.runtime.worker.stages.activations import ActivationTransport
from dovetail.runtime.worker.stages.batches import StageBatch, concatenated
from dovetail.runtime.worker.stages.dense import StageDense
from dovetail.runtime.worker.stages.requests import StageRequests
from dovetail.transport import Sendable

Packed = dict[int, list[Sendable]]
"""By the stage that it goes to."""
SCORES = -1


class StageComputer:
    """Some consecutive blocks of a model, run for the micro-batches that visit them."""

    def __init__(
        self,
        name: str,
        graph: LayerGraph,
        cut: Cut,
        model: ServedModel,
        lines: ServerConnections,
        calls: StageRequests,
        *,
        is_last: bool,
        reply: Callable[..., bool],
        wanted: Callable[[], bool],
        dense: StageDense,
        travel: ActivationTransport,
        keeps_spans: bool,
    ) -> None:
        """Keep the model, and the lines to servers and later stages; `reply` answers an envelope."""
        self._name, self._graph, self._cut, self._model = name, graph, cut, model
        self._lines, self._calls, self._is_last = lines, calls, is_last
        self._reply, self._wanted, self._dense, self._travel = reply, wanted, dense, travel
        tables = {id(layer) for each in sparse_modules(graph) for layer in each.layers}
        modules = [module for block in graph.blocks[cut.first : cut.last + 1] for module in block.module.modules()]
        self.joins = is_last and not any(id(module) in tables for module in modules)
        """Whether several micro-batches may be computed at once: nothing is looked up for them."""
        self._keeps_spans = keeps_spans
        self.spans: list[Span] = []
        """For the timeline; whoever tells the coordinator of them takes them out."""
        self._computed: deque[tuple[Sequence[StageBatch], list[Packed], Timer]] = deque()
        """Handed out both ways, and not answered yet."""

    def compute(self, visits: Sequence[StageBatch]) -> bool:
        """Go on with a micro-batch, or with several at once; True where they have been here, forward and back.

        `answer_done` answers them then. On a GPU this only hands out the work: the next micro-batch can be handed out
        while this one is computed.
        """
        timer = Timer(self._model.device)
        self._travel.await_copies()
        whole = concatenated(visits)
        if not whole.calls:
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
        _hand_back(whole, visits)
        packed = [self._packed(visit) for visit in visits]
        timer.end()
        self._computed.append((visits, packed, timer))
        return True

    def _own(self, seconds: float) -> tuple[float, ...]:
        """Return seconds of this stage among those of all."""
        return (*[0.0] * self._cut.number, seconds)

    @property
    def has_computed(self) -> bool:
        """Say whether micro-batches wait to be answered."""
        return bool(self._computed)

    def answer_done(self, *, wait: bool) -> None:
        """Answer micro-batches that are computed; with `wait`, wait for one at least."""
        while self._computed and (wait or self._computed[0][2].is_over):
            visits, packed, timer = self._computed.popleft()
            self._note(visits[0], timer)
            samples = sum(visit.message.samples for visit in visits)
            for visit, arrays in zip(visits, packed, strict=True):
                visit.took(self._own(timer.seconds() * visit.message.samples / max(1, samples)))
                self._answer(visit, arrays)
            wait = False

    def _note(self, visit: StageBatch, timer: Timer) -> None:
        """Note for the timeline what was computed from when until now."""
        if self._keeps_spans:
            self.spans.append(Span("compute", timer.begun_at_s, now_s(), visit.message.step))

    def forget(self) -> None:
        """Throw away what is computed and not answered."""
        self._computed.clear()

    def _forward(self, visit: StageBatch) -> None:
        """Run the blocks."""
        message = visit.message
        self._dense.prepare(message, self._wanted)
        rows = self._model.rows
        rows.begin([], lambda look_up: self._lines.pull(
            message.generation, message.step, [look_up], dense=False, wanted=self._wanted
        ).rows[0])  # fmt: skip
        graph, cut = self._graph, self._cut
        keep = {name for names in cut.outputs.values() for name in names}
        if self._is_last:
            keep |= {graph.scores, graph.blocks[-1].name}
        fields = {name: visit.fields.get(name) for name in cut.fields}
        batch: Any = SimpleNamespace(**fields)
        with self._model.computing():
            outputs = graph.run(batch, visit.inputs, first=cut.first, last=cut.last, keep=tuple(keep))
        visit.leaves = rows.leaves
        visit.outputs = {name: outputs[name] for name in outputs if name in keep}

    def _send_on(self, visit: StageBatch) -> None:
        """Send what later stages read."""
        message, cut = visit.message, self._cut
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
            arrays = [self._travel.pack(visit.outputs[name]) for name in names]
            visit.calls[stage] = self._calls.ask(message.route[stage - 1], onward, arrays)

    def _turn(self, visit: StageBatch) -> None:
        """At the last stage: the loss, and the way back."""
        graph = self._graph
        visit.loss = loss = visit.outputs[graph.blocks[-1].name]
        visit.scores = visit.outputs.get(graph.scores, visit.inputs.get(graph.scores))
        self._dense.add_up(visit.task)
        loss.backward()  # type: ignore[no-untyped-call]

    def _backward(self, visit: StageBatch) -> None:
        """Run the backward pass with the gradients that came back."""
        gradients: dict[str, Tensor] = {}
        for stage, call in visit.calls.items():
            arrays = call.envelope.arrays if call.envelope is not None else ()
            if call.envelope is not None:
                visit.took(call.envelope.message.stages_s)
            for name, tensor in zip(self._cut.outputs[stage], self._travel.unpack_all(arrays), strict=True):
                if not visit.outputs[name].requires_grad:
                    continue
                gradient = tensor.to(visit.outputs[name].dtype)
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
        self._dense.add_up(visit.task)
        if gradients:
            torch.autograd.backward([visit.outputs[name] for name in gradients], list(gradients.values()))
        for call in visit.calls.values():  # only now: the gradients were in the memory of the envelopes
            self._calls.end(call)

    def _packed(self, visit: StageBatch) -> Packed:
        """Return what goes back to each stage, the scores with what goes to the first."""
        packed = {
            sender: [self._gradient_of(visit, name) for name in self._cut.inputs.get(sender, ())]
            for sender in visit.envelopes
        }
        if visit.scores is not None:
            packed[SCORES] = [self._travel.pack(visit.scores, exact=True)]
        return packed

    def _answer(self, visit: StageBatch, packed: Packed) -> None:
        """Send gradients to where what they are of came from; the first stage gets the rest of what came of it too.

        The first stage is answered first: what the scores lie in may be another's envelope.
        """
        where = f"on {self._name} at step {visit.message.step}"
        loss = finite(self._travel.number(visit.loss), where) if visit.loss is not None else None
        rows = gradients_of(visit.leaves)
        for sender, envelope in sorted(visit.envelopes.items()):
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
                has_scores=visit.scores is not None,
                stages_s=visit.stages_s,
            )
            self._reply(envelope, returned, arrays)

    def _gradient_of(self, visit: StageBatch, name: str) -> Sendable:
        """Return the gradient of an input; whole numbers have none."""
        tensor, gradient = visit.inputs[name], visit.gradients.get(name)
        if not tensor.requires_grad:
            return np.zeros(0, dtype=np.float32)
        return self._travel.pack(gradient if gradient is not None else torch.zeros_like(tensor))


def _hand_back(whole: StageBatch, visits: Sequence[StageBatch]) -> None:
    """Give each of several that were computed at once what came of it; the loss of all counts for the first."""
    if visits[0] is whole:
        return
    begin, samples = 0, sum(visit.message.samples for visit in visits)
    for visit in visits:
        part = slice(begin, begin + visit.message.samples)
        begin = part.stop
        visit.gradients = {name: None if each is None else each[part] for name, each in whole.gradients.items()}
        is_each = whole.scores is not None and whole.scores.shape[:1] == (samples,)
        visit.scores = whole.scores[part] if is_each else None
        if whole.loss is not None:
            visit.loss = whole.loss if visit is visits[0] else torch.zeros((), device=whole.loss.device)


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
