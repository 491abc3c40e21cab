"""What a restored model answers, batch by batch: the one place that knows how a model is asked."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.data.source import Source
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.metrics import make_metric
from dovetail.runtime.errors import TrainingError

BATCH = 2048
KNOWN = ("auc", "log-loss")
"""Metrics of scores and labels alone."""


def outcomes(graph: LayerGraph, batches: Iterator[Batch]) -> Iterator[tuple[Batch, float, Tensor]]:
    """Yield each batch with the model's loss, summed over its samples, and its answer."""
    graph.eval()
    last = graph.blocks[-1].name
    for batch in batches:
        with torch.no_grad():
            kept = graph.run(batch, keep=(graph.scores, last))
        yield batch, float(kept[last]), kept[graph.scores]


def answers(graph: LayerGraph, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Tensor]]:
    """Yield each batch with the model's answer; labels are not looked at."""
    graph.eval()
    for batch in batches:
        with torch.no_grad():
            answer = graph.predict(batch)
        yield batch, answer


def figures_of(
    graph: LayerGraph, source: Source, *, first: int = 0, num_samples: int, metrics: tuple[str, ...]
) -> dict[str, float]:
    """Return the mean loss, and the metrics, over samples from `first` on."""
    counted = {name: make_metric(name) for name in metrics if name in KNOWN}
    loss = samples = 0.0
    for batch, batch_loss, scores in outcomes(graph, batches_of(source, first, num_samples)):
        loss += batch_loss
        samples += batch.num_samples
        for metric in counted.values():
            metric.update(scores, batch.labels)
    if not samples:
        raise TrainingError("there are no samples to look at", hint="give other data, or fewer broken rows")
    return {"loss": loss / samples, **{name: metric.value() for name, metric in counted.items()}}


def batches_of(source: Source, first: int = 0, num_samples: int | None = None) -> Iterator[Batch]:
    """Yield samples in order."""
    end = source.num_samples
    if num_samples is not None:
        end = first + num_samples if end is None else min(end, first + num_samples)
    if end is None:
        raise TrainingError("the data have no end", hint="say how many samples")
    for begin in range(first, end, BATCH):
        batch = source.read(begin, min(begin + BATCH, end))
        if batch.num_samples:
            yield batch
