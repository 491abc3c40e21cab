"""Computing: a model forward and backward on one micro-batch, and what stages of one share with that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.worker.compute.memory import saved_bytes
from dovetail.runtime.worker.compute.per_sample.clipped import ClippedGradients
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.rows.batch_rows import AheadRows, Fetch, Leaf
from dovetail.runtime.worker.rows.pinned_memory import to_host
from dovetail.runtime.worker.tasks.task import RowGradients


@dataclass(frozen=True, slots=True)
class Computed:
    """What came of a micro-batch; the gradients of dense parameters add up in the model."""

    rows: RowGradients
    loss: float
    """Summed over samples."""
    scores: Any
    """The model's answers, where they are on the way to the loss: a tensor, or several."""


class Computer:
    """Runs a whole model."""

    def __init__(self, model: ServedModel, clipped: ClippedGradients | None = None) -> None:
        """Keep what is computed; gradients of single samples are `clipped` where somebody does that."""
        self.model, self._clipped = model, clipped
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
        rows = self.model.rows
        rows.begin(ahead, fetch)
        if self._clipped is not None:
            loss_value, scores, found = self._clipped.compute(batch)
            return Computed(found, finite(loss_value, where), scores)
        device = self.model.device
        with self.model.computing():
            loss, scores = self._forward(batch if device.type == "cpu" else batch.to(device, non_blocking=True), ahead)
        total = finite(float(loss.detach()), where)
        if (scale := self.model.loss_scale) is not None:  # gradients are not final before they are divided by it
            scale.backward(loss, batch.num_samples, self.model.gradients, lambda: rows.leaves)
        else:
            before_backward()
            loss.backward()  # type: ignore[no-untyped-call]
        return Computed(gradients_of(rows.leaves), total, scores)

    def _forward(self, batch: Batch, ahead: AheadRows) -> tuple[Tensor, Any]:
        """Return loss and scores; of the first batch, note what it takes."""
        if self.bytes_per_sample or not batch.num_samples:
            return self.model.outcome(batch)
        with saved_bytes(self.model.values) as saved:
            result = self.model.outcome(batch)
        rows_bytes = 2 * sum(rows.nbytes for _, rows in ahead)  # they and their gradients
        self.bytes_per_sample = (saved.total + batch.num_bytes + rows_bytes) / batch.num_samples
        return result


def finite(total: float, where: str) -> float:
    """Return the loss; one that is no number is an error that says `where`."""
    if not math.isfinite(total):
        raise TrainingError(
            f"the loss is {total} {where}", hint="lower the learning rate, clip gradients, or look for broken samples"
        )
    return total


def gradients_of(leaves: Sequence[Leaf]) -> RowGradients:
    """Return the gradients of looked-up rows, of those that the loss depends on."""
    found = [(leaf.wanted, leaf.tensor.grad) for leaf in leaves]
    known = [(wanted, gradient) for wanted, gradient in found if gradient is not None]
    values = to_host([gradient for _, gradient in known])
    return [(wanted, each) for (wanted, _), each in zip(known, values, strict=True)]
