"""What a restored model answers, batch by batch: the one place that knows how a model is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from dovetail.data.batch import Batch
from dovetail.data.source import Source
from dovetail.models.answers import Scores
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.metrics import make_metric
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.build import Model

BATCH = 2048


def answers(model: Model, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Scores]]:
    """Yield each batch with the model's answer; labels are not looked at."""
    model.eval()
    for batch in batches:
        with torch.no_grad():
            answer = model.predict(batch)
        yield batch, answer


def figures_of(
    model: Model, source: Source, *, first: int = 0, num_samples: int | None = None, metrics: Sequence[str]
) -> tuple[dict[str, float], int]:
    """Return the mean loss as `loss`, and the metrics, over samples from `first` on; and how many samples those are."""
    counted = {name: make_metric(name) for name in metrics}
    loss, samples = 0.0, 0
    model.eval()
    for batch in batches_of(source, first, num_samples):
        with torch.no_grad():
            batch_loss, scores = model.outcome(batch)
        loss += float(batch_loss)
        samples += batch.num_samples
        for metric in counted.values():
            metric.update(scores, batch.labels)
    if not samples:
        raise TrainingError("there are no samples to look at", hint="give other data, or fewer broken rows")
    return {"loss": loss / samples, **{name: metric.value() for name, metric in counted.items()}}, samples


def without_ranking(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics but those that rank all items, which nobody lists for a graph of layers."""
    return tuple(name for name in names if not (isinstance(model, LayerGraph) and name.startswith("recall@")))


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
