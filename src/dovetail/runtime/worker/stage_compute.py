"""Computing at a later stage: its blocks forward and back, one micro-batch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.messages import Forward, Returned
from dovetail.runtime.model.stages import Cut
from dovetail.runtime.worker.calls import Array, Calls, as_array, as_tensor
from dovetail.runtime.worker.compute import finite_loss, gradients_of
from dovetail.runtime.worker.lines import Lines
from dovetail.runtime.worker.model import ServedModel
from dovetail.runtime.worker.stage_dense import StageDense
from dovetail.runtime.worker.stage_visits import Visit


class StageComputer:
    """Some consecutive blocks of a model, run for the micro-batches that visit them."""

    def __init__(
        self,
        name: str,
        graph: LayerGraph,
        cut: Cut,
        model: ServedModel,
        lines: Lines,
        calls: Calls,
        *,
        is_last: bool,
        reply: Callable[..., bool],
        wanted: Callable[[], bool],
        dense: StageDense,
    ) -> None:
        """Keep the model, and the lines to servers and later stages; `reply` answers a letter."""
        self._name, self._graph, self._cut, self._model = name, graph, cut, model
        self._lines, self._calls, self._is_last = lines, calls, is_last
        self._reply, self._wanted, self._dense = reply, wanted, dense

    def compute(self, visit: Visit) -> bool:
        """Go on with a micro-batch; True where it has been here, forward and back."""
        begun_s = time.perf_counter()
        if not visit.calls:
            self._forward(visit)
            if not self._is_last:
                self._took(visit, begun_s)
                self._send_on(visit)
                return False
            self._turn(visit)
        else:
            self._backward(visit)
        arrays = self._gradients_for(visit)
        self._took(visit, begun_s)
        self._answer(visit, arrays)
        return True

    def _took(self, visit: Visit, begun_s: float) -> None:
        """Note how long this stage computed."""
        own = [0.0] * self._cut.number
        visit.took((*own, time.perf_counter() - begun_s))

    def _forward(self, visit: Visit) -> None:
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
        outputs = graph.run(batch, visit.inputs, first=cut.first, last=cut.last, keep=tuple(keep))
        visit.leaves = rows.leaves
        visit.outputs = {name: outputs[name] for name in outputs if name in keep}

    def _send_on(self, visit: Visit) -> None:
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
            arrays = [as_array(visit.outputs[name]) for name in names]
            visit.calls[stage] = self._calls.ask(message.route[stage - 1], onward, arrays)

    def _turn(self, visit: Visit) -> None:
        """At the last stage: the loss, and the way back."""
        graph = self._graph
        loss = visit.outputs[graph.blocks[-1].name]
        visit.loss = finite_loss(loss, f"on {self._name} at step {visit.message.step}")
        visit.scores = visit.outputs.get(graph.scores, visit.inputs.get(graph.scores))
        self._dense.add_up(visit.task)
        loss.backward()  # type: ignore[no-untyped-call]

    def _backward(self, visit: Visit) -> None:
        """Run the backward pass with the gradients that came back."""
        gradients: dict[str, Tensor] = {}
        for stage, call in visit.calls.items():
            arrays = call.letter.arrays if call.letter is not None else ()
            if call.letter is not None:
                visit.took(call.letter.message.stages_s)
            for name, array in zip(self._cut.outputs[stage], arrays, strict=True):
                if not visit.outputs[name].requires_grad:
                    continue
                gradient = as_tensor(array, self._model.device)
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
            self._calls.end(call)
        self._dense.add_up(visit.task)
        if gradients:
            torch.autograd.backward([visit.outputs[name] for name in gradients], list(gradients.values()))

    def _gradients_for(self, visit: Visit) -> dict[int, list[Array]]:
        """Return the gradients of what came from each stage."""
        return {
            sender: [_gradient_of(visit.inputs[name]) for name in self._cut.inputs.get(sender, ())]
            for sender in visit.letters
        }

    def _answer(self, visit: Visit, gradients: dict[int, list[Array]]) -> None:
        """Send gradients to where what they are of came from; the first stage gets the rest of what came of it too."""
        rows = gradients_of(visit.leaves)
        first = min(visit.letters)
        """Who is told how long the stages took: one of them, so that it counts once."""
        for sender, letter in visit.letters.items():
            arrays, stages_s = gradients[sender], visit.stages_s if sender == first else ()
            if sender:
                self._reply(letter, Returned(stages_s=stages_s), arrays)
                continue
            for wanted, values in rows:
                arrays += [wanted.keys, values]
            if visit.scores is not None:
                arrays.append(as_array(visit.scores))
            returned = Returned(
                loss=visit.loss,
                tables=tuple(wanted.table for wanted, _ in rows),
                has_scores=visit.scores is not None,
                stages_s=stages_s,
            )
            self._reply(letter, returned, arrays)


def _gradient_of(tensor: Tensor) -> Array:
    """Return the gradient of an input; whole numbers have none."""
    if not tensor.requires_grad:
        return np.zeros(0, dtype=np.float32)
    return as_array(tensor.grad if tensor.grad is not None else torch.zeros_like(tensor))
