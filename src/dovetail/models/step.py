"""One training step in one process: what every distributed step must equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.metrics import Metric
from dovetail.models.optimizers import ModelOptimizer


def train_step(graph: LayerGraph, batch: Batch, optimizer: ModelOptimizer, *, factor: float = 1.0) -> float:
    """Update the model once and return the batch's loss, summed over its samples.

    The gradient is that of the sum, divided by the samples of the whole batch.
    """
    optimizer.zero_grad()
    loss = graph(batch)
    total = float(loss.detach())
    if math.isnan(total):
        raise ModelError("the loss is not a number", hint="lower the learning rate, or look for broken samples")
    (loss / batch.num_samples).backward()
    optimizer.step(factor)
    return total


def evaluate(
    graph: LayerGraph,
    batches: Iterable[Batch],
    metric: Metric,
    *,
    score: Callable[[LayerGraph, Batch], Tensor] | None = None,
    target: Callable[[Batch], Tensor] | None = None,
) -> float:
    """Return the metric of the model's answers over `batches`, dropout off and without gradients.

    `score` and `target` are the model's answer and the batch's labels unless others are given, as ranking models need.
    """
    was_training = graph.training
    graph.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                scores = graph.predict(batch) if score is None else score(graph, batch)
                metric.update(scores, batch.labels if target is None else target(batch))
    finally:
        graph.train(was_training)
    return metric.value()
