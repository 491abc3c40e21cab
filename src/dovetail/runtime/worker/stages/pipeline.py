"""The first stage's side of a pipeline: micro-batches under way through the later stages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Collect, Collected, Forward, Returned, Span
from dovetail.runtime.model.stages import Cut, cuts_of
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.computer import Computed, gradients_of
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.links.servers import Abandoned
from dovetail.runtime.worker.rows.batch_rows import Fetch, Leaf
from dovetail.runtime.worker.rows.keys import look_up
from dovetail.runtime.worker.stages.activations import activation_transport, add_gradients, run_back
from dovetail.runtime.worker.stages.requests import StageRequest, StageRequests, is_stale
from dovetail.runtime.worker.tasks.spans import now_s
from dovetail.runtime.worker.tasks.task import FetchedBatch, RowGradients, Task

LOOK_S = 0.05
"""How often whoever waits looks whether it is still wanted."""


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """A micro-batch on its way through the later stages."""

    fetched: FetchedBatch
    outputs: dict[str, Tensor]
    """Of this stage's blocks, which later ones read."""
    leaves: list[Leaf]
    route: tuple[str, ...]
    requests: dict[int, StageRequest] = field(default_factory=dict)
    """By stage; answered when the micro-batch has been there and back."""

    @property
    def has_returned(self) -> bool:
        """Say whether every stage has answered."""
        return all(request.envelope is not None for request in self.requests.values())


class Pipeline:
    """Runs the first stage's blocks, and has the others run by those who hold them; the main thread's."""

    def __init__(self, process: Process, model: ServedModel) -> None:
        """Open no connection yet: nobody is known to be there."""
        self._name = f"{process.name}/{process.process_id}"
        self._model, self._graph = model, model.layer_graph
        self._blueprint = process.blueprint
        self._cuts: list[Cut] = cuts_of(self._graph, process.blueprint)
        largest = max(cut.dense.stop - cut.dense.start for cut in self._cuts)
        self._requests = StageRequests(process, "pipeline", dense_size=largest)
        self._transport = activation_transport(process.blueprint, model.device, process.name)
        self._in_flight: list[InFlightBatch] = []
        self._num_sent = 0
        self._load: dict[str, int] = {}
        self._visited: dict[int, set[str]] = {}
        """By task: who has some of its gradients."""
        self._stages_s: tuple[float, ...] = (0.0,)
        """How long each stage computed for the task under way."""
        self._collects = process.blueprint.run.training.dense == "ps"
        self.staff: tuple[tuple[str, ...], ...] = ()
        """Who is there, of each later stage; the control thread says."""

    @property
    def is_full(self) -> bool:
        """Say whether enough micro-batches are under way: two for this worker, and for every one of the later stages.

        With one each, whoever is done waits for the next to come.
        """
        return len(self._in_flight) >= 2 * (1 + sum(len(names) for names in self.staff))

    @property
    def task(self) -> Task | None:
        """The task whose micro-batches are under way."""
        return self._in_flight[0].fetched.micro_batch.task if self._in_flight else None

    # -- there ---------------------------------------------------------------------------------------------------------

    def send(self, fetched: FetchedBatch, fetch: Fetch, wanted: Callable[[], bool]) -> None:
        """Run this stage's blocks on a micro-batch, and send what the others read on its way."""
        route = self._route(wanted)
        begun_s = time.perf_counter()
        rows, cut = self._model.rows, self._cuts[0]
        rows.begin(fetched.rows, fetch)
        batch = fetched.batch if self._model.device.type == "cpu" else fetched.batch.to(self._model.device)
        with self._model.computing():
            outputs = self._graph.run(batch, first=cut.first, last=cut.last)
        flying = InFlightBatch(fetched, outputs, rows.leaves, route)
        self._num_sent += 1
        assign = fetched.micro_batch.task.assign
        for later in self._cuts[1:]:
            names = later.inputs.get(0, ())
            message = Forward(
                generation=assign.generation,
                step=assign.step,
                task=assign.task,
                head=self._name,
                flight=self._num_sent,
                sender=0,
                route=route,
                samples=fetched.batch.num_samples,
                fields=tuple(name for name in later.fields if getattr(fetched.batch, name) is not None),
                outputs=names,
            )
            arrays = [self._transport.pack(getattr(fetched.batch, name), exact=True) for name in message.fields]
            arrays += [self._transport.pack(outputs[name]) for name in names]
            flying.requests[later.number] = self._requests.ask(route[later.number - 1], message, arrays)
        for name in route:
            self._load[name] = self._load.get(name, 0) + 1
        self._visited.setdefault(assign.task, set()).update(route)
        self._in_flight.append(flying)
        self._took(fetched.micro_batch.task, begun_s)

    def _took(self, task: Task, begun_s: float) -> None:
        """Note that this stage computed from then until now."""
        seconds, end_s = time.perf_counter() - begun_s, now_s()
        self._stages_s = (self._stages_s[0] + seconds, *self._stages_s[1:])
        task.spans.append(Span("compute", end_s - seconds, end_s, task.assign.step))

    def _route(self, wanted: Callable[[], bool]) -> tuple[str, ...]:
        """Return who gets the next micro-batch: of each stage, whoever has the fewest of ours under way."""
        while not self.staff or not all(self.staff):
            if not wanted():
                raise Abandoned
            self._requests.answered(LOOK_S)
        return tuple(min(names, key=lambda name: self._load.get(name, 0)) for names in self.staff)

    # -- and back ------------------------------------------------------------------------------------------------------

    def returned(self, timeout_s: float) -> list[tuple[FetchedBatch, Computed]]:
        """Return micro-batches that have been everywhere, with what came of them, in the order they were sent."""
        for request in self._requests.answered(timeout_s):
            if is_stale(request):
                raise Abandoned
        found = []
        while self._in_flight and self._in_flight[0].has_returned:
            flying = self._in_flight.pop(0)
            for name in flying.route:
                self._load[name] -= 1
            found.append((flying.fetched, self._run_back(flying)))
        return found

    def _run_back(self, flying: InFlightBatch) -> Computed:
        begun_s = time.perf_counter()
        gradients: dict[str, Tensor] = {}
        rows: RowGradients = []
        loss, scores = math.nan, None
        for stage, request in flying.requests.items():
            answer: Any = request.envelope.message if request.envelope is not None else None
            if request.envelope is None or not isinstance(answer, Returned):
                raise TrainingError(f"{request.name} answered a micro-batch with {type(answer).__name__}", hint="a bug")
            arrays, names = list(request.envelope.arrays), self._cuts[stage].inputs.get(0, ())
            add_gradients(gradients, flying.outputs, names, self._transport.unpack_all(arrays[: len(names)]))
            arrays = arrays[len(names) :]
            for table in answer.tables:
                keys, values = arrays.pop(0), arrays.pop(0)
                rows.append((look_up(table, keys.copy(), self._blueprint.num_servers), values.copy()))
            if answer.has_scores:
                scores = torch.from_numpy(arrays.pop(0).copy())
            loss = answer.loss if answer.loss is not None else loss
            self._stages_s = tuple(a + b for a, b in zip_longest(self._stages_s, answer.stages_s, fillvalue=0.0))
        run_back(flying.outputs, gradients)
        for request in flying.requests.values():
            self._requests.end(request)
        mine = gradients_of(flying.leaves)
        self._took(flying.fetched.micro_batch.task, begun_s)
        return Computed(mine + rows, loss, scores)

    def finish(self, task: Task, wanted: Callable[[], bool]) -> None:
        """Note what the stages took for a task; where servers keep dense parameters, gather its gradients for them."""
        visited = self._visited.pop(task.assign.task, set())
        if self._collects:
            self._collect(task, visited, wanted)
        task.stages_s, self._stages_s = self._stages_s, (0.0,)
        task.compute_s += task.stages_s[0]  # its own: how fast a worker is does not depend on who comes after it

    def _collect(self, task: Task, visited: set[str], wanted: Callable[[], bool]) -> None:
        """Add what the later stages have of a task's dense gradients to this stage's own."""
        assign = task.assign
        message = Collect(generation=assign.generation, step=assign.step, task=assign.task, head=self._name)
        stage_of = {spec.name: number for number, stage in enumerate(self._blueprint.stages) for spec in stage.workers}
        have_some = [name for name in sorted(visited) if self._blueprint.stages[stage_of[name]].has_dense]
        requests = [self._requests.ask(name, message) for name in have_some]
        while any(request.envelope is None for request in requests):
            if not wanted():
                raise Abandoned
            if any(is_stale(request) for request in self._requests.answered(LOOK_S)):
                raise Abandoned
        for request in requests:
            envelope = request.envelope
            if envelope is not None and isinstance(envelope.message, Collected) and envelope.arrays:
                part = self._cuts[stage_of[request.name]].dense
                self._model.gradients[part] += self._transport.unpack_all(envelope.arrays)[0]
            self._requests.end(request)

    def give_up(self) -> None:
        """Throw away what is under way."""
        self._in_flight.clear()
        self._load.clear()
        self._visited.clear()
        self._stages_s = (0.0,)
        self._requests.give_up()

    def close(self) -> None:
        """Close the connections."""
        self._requests.close()
