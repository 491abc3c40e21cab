"""Training steps on the device in one launch: look-up, layers, gradients, rows, and what else a step does.

On CUDA a step is captured as a graph after a few batches of one size, and replayed for each further batch of that size:
what changes from batch to batch is copied to where the graph reads it. Batches of other sizes, and steps on a CPU, run
operation by operation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from dovetail.embedding.tiers.device.prefetched_batch import BatchPlaces, PrefetchedBatch
from dovetail.embedding.tiers.device.streams import StagedArrays
from dovetail.embedding.tiers.device.table import DeviceTable

WARM_STEPS = 3
"""Steps of a size before it is captured: libraries choose their kernels, and Triton compiles."""
LossOf = Callable[..., Tensor]
Outcome = TypeVar("Outcome")
Record = Callable[[Callable[[], Any]], Callable[[], Any]]
"""Takes in what launches a step; returns what does the same again, on the same memory."""
Launch = Callable[[Sequence[BatchPlaces], Sequence[Tensor], Sequence[Tensor]], Outcome]
"""Launches a step, given the places of each table's rows, its distinct slots, and the inputs.

Of the distinct slots, those beyond `num` of the places are no rows.
"""


def recorder_for(device: torch.device) -> Record | None:
    """Return what captures steps on a device; None where nothing does."""
    return cuda_graph if device.type == "cuda" else None


def cuda_graph(launch: Callable[[], Any]) -> Callable[[], Any]:
    """Capture what is launched, which is not done yet; nothing else may use the device meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = launch()

    def again() -> Any:
        graph.replay()
        return result

    return again


class CapturedSteps(Generic[Outcome]):
    """Launches steps on batches that were announced to some tables; those of sizes that come often, as a graph each."""

    def __init__(
        self,
        tables: Sequence[DeviceTable],
        *,
        record: Record | None,
        most: int | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Capture steps of up to `most` sizes by `record`; where that fails, `tell` hears why, or it is raised."""
        self._tables, self._record, self._most, self._tell = tables, record, most, tell
        self._seen: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, _Captured[Outcome]] = {}
        self.waited_s = 0.0
        """How long this thread has waited for batches to be planned."""

    def take(self) -> list[tuple[PrefetchedBatch, BatchPlaces]]:
        """Return the next batch announced to each table."""
        begun_s = time.perf_counter()
        taken = [table.take_next() for table in self._tables]
        self.waited_s += time.perf_counter() - begun_s
        return taken

    def run(
        self, size: Hashable, places: Sequence[BatchPlaces], inputs: StagedArrays, launch: Launch[Outcome]
    ) -> Outcome:
        """Do a step on a batch of some size (None: never captured); the next one overwrites what a graph yields."""
        if size is not None and self._record is not None and self._is_due(size):
            self._capture(self._record, size, places, inputs, launch)
        if size in self._graphs:
            return self._graphs[size].replay(places, inputs)
        return launch(places, [each.unique[: each.num_unique] for each in places], inputs.tensors())

    def _is_due(self, size: Hashable) -> bool:
        """Count a batch of a size; say whether its step is to be captured now."""
        if size in self._graphs or (self._most is not None and len(self._graphs) >= self._most):
            return False
        self._seen[size] += 1
        return self._seen[size] > WARM_STEPS

    def _capture(
        self,
        record: Record,
        size: Hashable,
        places: Sequence[BatchPlaces],
        inputs: StagedArrays,
        launch: Launch[Outcome],
    ) -> None:
        """Capture a step; where that cannot be done, none is from now on. Nothing is computed."""
        own = [BatchPlaces(each.numbers.clone(), each.num_keys, each.num_unique) for each in places]
        own_inputs = inputs.clone()
        try:
            with ExitStack() as still:
                for table in self._tables:
                    still.enter_context(table.quiet())
                again = record(lambda: launch(own, [each.unique for each in own], own_inputs.tensors()))
        except Exception as problem:  # of CUDA, of PyTorch, of the model: each has its own
            if self._tell is None:
                raise
            self._record = None
            cause = problem.__context__ or problem
            why = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
            self._tell(f"steps run operation by operation: the model cannot be captured as a CUDA graph ({why[:200]})")
        else:
            self._graphs[size] = _Captured(own, own_inputs, again)


@dataclass(frozen=True, slots=True, eq=False)
class _Captured(Generic[Outcome]):
    """A captured step, and the memory that it reads."""

    places: Sequence[BatchPlaces]
    inputs: StagedArrays
    again: Callable[[], Outcome]

    def replay(self, places: Sequence[BatchPlaces], inputs: StagedArrays) -> Outcome:
        """Do the step on another batch of the same size."""
        mine = [self.inputs.numbers, *(each.numbers for each in self.places)]
        torch._foreach_copy_(mine, [inputs.numbers, *(each.numbers for each in places)])
        return self.again()


class FusedStep:
    """Trains on batches announced to one table, one a call.

    `loss_of(values, *inputs)` is the loss of a batch, from the values of its keys, float32 [number of keys, width], and
    the arrays announced with them; `update()` steps the dense parameters by their gradients, and clears these. Both
    may do on CUDA only what a graph can hold: no copies to the host, no shapes that depend on numbers.
    """

    def __init__(self, rows: DeviceTable, loss_of: LossOf, update: Callable[[], None], *, graphs: bool = True) -> None:
        self._rows, self._loss_of, self._update = rows, loss_of, update
        self._steps: CapturedSteps[Tensor] = CapturedSteps([rows], record=recorder_for(rows.device) if graphs else None)

    @property
    def waited_s(self) -> float:
        """How long this thread has waited for batches to be planned."""
        return self._steps.waited_s

    def __call__(self) -> Tensor:
        """Train on the next announced batch; return its loss, which on CUDA the next call overwrites."""
        ((batch, places),) = self._steps.take()
        staged = batch.staged_arrays
        self._rows.stepper.set_rate()
        loss = self._steps.run((places.num_keys, staged.layout), [places], staged, self._launch)
        self._rows.stepped(batch, places)
        return loss

    def _launch(self, places: Sequence[BatchPlaces], unique: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """Launch one step."""
        values = self._rows.gather(places[0], unique[0]).requires_grad_()
        loss = self._loss_of(values, *inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()
        if values.grad is not None:
            self._rows.stepper.step(unique[0], places[0], places[0].order, values.grad)
        return loss.detach()
