"""One training step in one process: what every distributed step must equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.models.chain import Chain
from dovetail.models.errors import ModelError
from dovetail.models.metrics import Metric
from dovetail.models.optimizers import ModelOptimizer


def train_step(chain: Chain, batch: Batch, optimizer: ModelOptimizer, *, factor: float = 1.0) -> float:
    """Update the model once and return the batch's loss, summed over its samples.

    The gradient is that of the sum, divided by the samples of the whole batch.
    """
    optimizer.zero_grad()
    loss = chain(batch)
    total = float(loss.detach())
    if math.isnan(total):
        raise ModelError("the loss is not a number", hint="lower the learning rate, or look for broken samples")
    (loss / batch.num_samples).backward()
    optimizer.step(factor)
    return total


def evaluate(
    chain: Chain,
    batches: Iterable[Batch],
    metric: Metric,
    *,
    score: Callable[[Chain, Batch], Tensor] | None = None,
    target: Callable[[Batch], Tensor] | None = None,
) -> float:
    """Return the metric of the model's answers over `batches`, dropout off and without gradients.

    `score` and `target` are the model's answer and the batch's labels unless others are given, as ranking models need.
    """
    was_training = chain.training
    chain.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                scores = chain.predict(batch) if score is None else score(chain, batch)
                metric.update(scores, batch.labels if target is None else target(batch))
    finally:
        chain.train(was_training)
    return metric.value()
