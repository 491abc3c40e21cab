"""Computing: a model, or some blocks of it, forward and backward on one micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.worker.memory import saved_bytes
from dovetail.runtime.worker.model import ServedModel
from dovetail.runtime.worker.row_source import AheadRows, Fetch
from dovetail.runtime.worker.task import RowGradients


@dataclass(frozen=True, slots=True)
class Computed:
    """What came of a micro-batch; the gradients of dense parameters add up in the model."""

    rows: RowGradients
    loss: float
    """Summed over samples."""
    scores: Any
    """The model's answers, where they are on the way to the loss: a tensor, or several."""


class Computer:
    """Runs a whole model, or blocks `first` to `last` (inclusive) of a graph, the last of which is its loss."""

    def __init__(self, model: ServedModel, *, first: int | None = None, last: int | None = None) -> None:
        """Keep what is computed."""
        self._model, self._first, self._last = model, first, last
        self.bytes_per_sample = 0.0
        """What a sample takes in memory, both ways; 0 before the first was computed."""

    def compute(
        self,
        batch: Batch,
        ahead: AheadRows,
        fetch: Fetch,
        *,
        where: str,
        before_backward: Callable[[], None] = lambda: None,
    ) -> Computed:
        """Compute the gradients of a batch with the rows `ahead`; what else it looks up, `fetch` gets.

        A loss that is no number is an error that says `where`.
        """
        rows = self._model.rows
        rows.begin(ahead, fetch)
        device = self._model.device
        loss, scores = self._forward(batch if device.type == "cpu" else batch.to(device), ahead)
        total = float(loss.detach())
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss is {total} {where}",
                hint="lower the learning rate, clip gradients, or look for broken samples",
            )
        before_backward()
        loss.backward()  # type: ignore[no-untyped-call]
        found = [(leaf.wanted, leaf.gradients) for leaf in rows.leaves]
        return Computed([(wanted, values) for wanted, values in found if values is not None], total, scores)

    def _forward(self, batch: Batch, ahead: AheadRows) -> tuple[Tensor, Any]:
        """Return loss and scores; of the first batch, note what it takes."""
        if self.bytes_per_sample or not batch.num_samples:
            return self._run(batch)
        with saved_bytes(self._model.values) as saved:
            result = self._run(batch)
        rows_bytes = 2 * sum(rows.nbytes for _, rows in ahead)  # they and their gradients
        self.bytes_per_sample = (saved.total + batch.num_bytes + rows_bytes) / batch.num_samples
        return result

    def _run(self, batch: Batch) -> tuple[Tensor, Any]:
        """Run the model, or the blocks that were asked for."""
        graph = self._model.graph
        if (self._first is None and self._last is None) or not isinstance(graph, LayerGraph):
            return self._model.outcome(batch)
        last = len(graph) - 1 if self._last is None else self._last
        loss = graph.blocks[last].name
        kept = graph.run(batch, first=self._first or 0, last=last, keep=(graph.scores, loss))
        return kept[loss], kept.get(graph.scores)
