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
from dovetail.runtime.worker.stage_visits import TaskKey, Visit


class StageComputer:
    """Some consecutive blocks of a model, and the dense gradients of the tasks whose micro-batches visit them."""

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
    ) -> None:
        """Keep the model, and the lines to servers and later stages; `reply` answers a letter."""
        self._name, self._graph, self._cut, self._model = name, graph, cut, model
        self._lines, self._calls, self._is_last = lines, calls, is_last
        self._reply, self._wanted = reply, wanted
        self._version = -1
        self._sums: dict[TaskKey, Tensor] = {}
        """Dense gradients of tasks under way, but for the one whose sum is in the model."""
        self._summed: TaskKey | None = None
        """The task whose gradients add up in the model."""
        self._busy_s: dict[TaskKey, float] = {}
        """How long it computed for tasks under way."""

    def begin_generation(self) -> None:
        """Throw away what is under way."""
        self._sums.clear()
        self._busy_s.clear()
        self._summed, self._version = None, -1
        self._model.gradients.zero_()

    def compute(self, visit: Visit) -> bool:
        """Go on with a micro-batch; True where it has been here, forward and back."""
        begun_s = time.perf_counter()
        is_over = self._backward(visit) if visit.calls else self._forward(visit)
        self._busy_s[visit.task] = self._busy_s.get(visit.task, 0.0) + time.perf_counter() - begun_s
        return is_over

    def take_sum(self, task: TaskKey) -> tuple[Tensor | None, float]:
        """Return the dense gradients of a task and how long it was computed, and forget both."""
        self._add_up(None)
        return self._sums.pop(task, None), self._busy_s.pop(task, 0.0)

    def _forward(self, visit: Visit) -> bool:
        """Run the blocks and send on what later stages read; the last stage comes back at once: True where it did."""
        message = visit.message
        self._take_parameters(message)
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
        if self._is_last:
            self._turn(visit)
            return True
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
        return False

    def _take_parameters(self, message: Forward) -> None:
        """Fetch the dense parameters of a step, with its first micro-batch."""
        if message.step == self._version or not len(self._model.values):
            return
        answer = self._lines.pull(message.generation, message.step, [], dense=True, wanted=self._wanted)
        if answer.dense is not None:
            self._model.values.copy_(torch.from_numpy(answer.dense[self._cut.dense]))
        self._version = message.step
        self._forget_before(message.step)

    def _forget_before(self, step: int) -> None:
        """Forget tasks of steps that count already, which nobody asked for: another worker did them too."""
        self._add_up(None)
        self._sums = {task: total for task, total in self._sums.items() if task[0] >= step}
        self._busy_s = {task: busy_s for task, busy_s in self._busy_s.items() if task[0] >= step}

    def _turn(self, visit: Visit) -> None:
        """At the last stage: the loss, and the way back."""
        graph = self._graph
        loss = visit.outputs[graph.blocks[-1].name]
        visit.loss = finite_loss(loss, f"on {self._name} at step {visit.message.step}")
        visit.scores = visit.outputs.get(graph.scores, visit.inputs.get(graph.scores))
        self._add_up(visit.task)
        loss.backward()  # type: ignore[no-untyped-call]
        self._answer(visit)

    def _backward(self, visit: Visit) -> bool:
        """Run the backward pass with the gradients that came back; the visit is over then: True."""
        gradients: dict[str, Tensor] = {}
        for stage, call in visit.calls.items():
            arrays = call.letter.arrays if call.letter is not None else ()
            for name, array in zip(self._cut.outputs[stage], arrays, strict=True):
                if not visit.outputs[name].requires_grad:
                    continue
                gradient = as_tensor(array, self._model.device)
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
            self._calls.end(call)
        self._add_up(visit.task)
        if gradients:
            torch.autograd.backward([visit.outputs[name] for name in gradients], list(gradients.values()))
        self._answer(visit)
        return True

    def _answer(self, visit: Visit) -> None:
        """Send the gradients of what came back to where it came from."""
        rows = gradients_of(visit.leaves)
        for sender, letter in visit.letters.items():
            arrays = [_gradient_of(visit.inputs[name]) for name in self._cut.inputs.get(sender, ())]
            if sender:
                self._reply(letter, Returned(), arrays)
                continue
            for wanted, values in rows:
                arrays += [wanted.keys, values]
            if visit.scores is not None:
                arrays.append(as_array(visit.scores))
            tables = tuple(wanted.table for wanted, _ in rows)
            returned = Returned(loss=visit.loss, tables=tables, has_scores=visit.scores is not None)
            self._reply(letter, returned, arrays)

    def _add_up(self, task: TaskKey | None) -> None:
        """Have the model's gradients be those of a task, or of none: what was in it goes to the sums."""
        if task is not None and task == self._summed:
            return
        if self._summed is not None:
            self._sums[self._summed] = self._model.gradients.clone()
            self._model.gradients.zero_()
        if task is not None and task in self._sums:
            self._model.gradients.copy_(self._sums.pop(task))
        self._summed = task


def _gradient_of(tensor: Tensor) -> Array:
    """Return the gradient of an input; whole numbers have none."""
    if not tensor.requires_grad:
        return np.zeros(0, dtype=np.float32)
    return as_array(tensor.grad if tensor.grad is not None else torch.zeros_like(tensor))
