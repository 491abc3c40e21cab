"""A whole training step on the device in one launch: look-up, layers, gradients, dense update, rows.

On CUDA the step is captured as a graph after a few batches of one size, and replayed for each further batch of that
size: what changes from batch to batch is copied to where the graph reads it. Batches of other sizes, and steps on a
CPU, run operation by operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from dovetail.embedding.tiers.device.prefetched_batch import BatchPlaces, PrefetchedBatch
from dovetail.embedding.tiers.device.table import DeviceTable

WARM_STEPS = 3
"""Steps of a size before it is captured: libraries choose their kernels, and Triton compiles."""
LossOf = Callable[..., Tensor]


class FusedStep:
    """Trains on announced batches, one a call.

    `loss_of(values, *inputs)` is the loss of a batch, from the values of its keys, float32 [number of keys, width], and
    the arrays announced with them; `update()` steps the dense parameters by their gradients, and clears these. Both
    may do on CUDA only what a graph can hold: no copies to the host, no shapes that depend on numbers.
    """

    def __init__(self, rows: DeviceTable, loss_of: LossOf, update: Callable[[], None], *, graphs: bool = True) -> None:
        self._rows, self._loss_of, self._update = rows, loss_of, update
        self._use_graphs = graphs and rows.device.type == "cuda"
        self._seen: dict[tuple[int, ...], int] = {}
        self._graphs: dict[tuple[int, ...], _Captured] = {}
        self.waited_s = 0.0
        """How long this thread has waited for batches to be planned."""

    def __call__(self) -> Tensor:
        """Train on the next announced batch; return its loss, which on CUDA the next call overwrites."""
        begun_s = time.perf_counter()
        plan, places = self._rows.take_next()
        self.waited_s += time.perf_counter() - begun_s
        size = (places.num_keys, *(each.numel() for each in plan.inputs))
        if self._use_graphs and size not in self._graphs:
            self._seen[size] = self._seen.get(size, 0) + 1
            if self._seen[size] > WARM_STEPS:
                self._graphs[size] = self._capture(places, plan)
        if size in self._graphs:
            loss = self._graphs[size].replay(places, plan)
        else:
            loss = self._step(places, plan.inputs, places.unique[: places.num_unique])
        self._rows.stepped(plan, places)
        return loss

    def _step(self, places: BatchPlaces, inputs: tuple[Tensor, ...], unique: Tensor) -> Tensor:
        """Launch one step; of `unique`, those beyond `places.num` are no rows."""
        rows = self._rows
        values = rows.gather(places, unique).requires_grad_()
        loss = self._loss_of(values, *inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()
        if values.grad is not None:
            rows.stepper.step(unique, places, places.order, values.grad)
        return loss.detach()

    def _capture(self, places: BatchPlaces, plan: PrefetchedBatch) -> _Captured:
        """Capture a step for batches like this one; nothing else may use the device meanwhile."""
        with self._rows.quiet():
            own = BatchPlaces(places.numbers.clone(), places.num_keys, places.num_unique)
            inputs = tuple(each.clone() for each in plan.inputs)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                loss = self._step(own, inputs, own.unique)
        return _Captured(graph, own, inputs, loss)


class _Captured:
    """A step as a graph, and the memory that it reads."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, places: BatchPlaces, inputs: tuple[Tensor, ...], loss: Tensor
    ) -> None:
        self._graph, self._places, self._inputs, self._loss = graph, places, inputs, loss

    def replay(self, places: BatchPlaces, plan: PrefetchedBatch) -> Tensor:
        """Run the step on a batch."""
        self._places.numbers.copy_(places.numbers)
        for mine, given in zip(self._inputs, plan.inputs, strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._loss
