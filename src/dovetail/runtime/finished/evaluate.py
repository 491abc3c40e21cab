"""How good a run's model is on data it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from dovetail.data.batch import Batch
from dovetail.data.load import DATA, load_data
from dovetail.data.source import Source
from dovetail.models.metrics import make_metric
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import check_by_name, read_blueprint, restore_model

BATCH = 2048
CLICK_METRICS = ("auc", "log-loss")


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A metric over samples, and where the samples came from."""

    metric: str | None
    value: float | None
    loss: float
    """The model's own, the mean over the samples."""
    samples: int
    on: str
    held_out: bool
    """Whether training left these samples out, as far as the run's files say."""
    checkpoint: str


def evaluate_run(
    folder: Path,
    *,
    data: str | None = None,
    data_options: Mapping[str, Any] | None = None,
    num_samples: int = 100_000,
    metric: str | None = None,
    checkpoint: Path | None = None,
    model: nn.Module | None = None,
    source: Source | None = None,
) -> Evaluation:
    """Return how good the model of a run is; absent `data`: on the run's data beyond what it was trained on.

    `model` and `source` are the run's own model and data where those were objects.
    """
    blueprint = read_blueprint(folder)
    name = metric or (blueprint.metric if blueprint.metric in CLICK_METRICS else None)
    if name is not None and name not in CLICK_METRICS:
        make_metric(name)  # no such metric at all
        raise TrainingError(
            f"`{name}` ranks all items, which a run's folder does not list",
            hint="choose auc or log-loss, or use dovetail.models.evaluate with result.load_model()",
        )
    run = blueprint.run
    if source is None and data is not None and run.data.name not in DATA and ":" not in run.data.name:
        source = load_data(data, **(data_options or {}))  # the run's own are an object of a Python program
    check_by_name(run, model=model, source=source)
    trained_on = source if source is not None else load_data(run.data.name, **run.data.options)
    graph = restore_model(folder, model=model, source=trained_on, checkpoint=checkpoint)
    if data is None and not data_options:
        asked, first, on, held_out = _held_out(trained_on, blueprint.samples)
    else:
        options = {**(run.data.options if data is None else {}), **(data_options or {})}
        asked = load_data(data or run.data.name, **options)
        first, on, held_out = 0, f"the data given, `{data or run.data.name}`", True
    _check_same_shape(asked, trained_on)
    total = num_samples if asked.num_samples is None else min(num_samples, asked.num_samples - first)
    counted = make_metric(name) if name is not None else None
    loss = samples = 0.0
    graph.eval()
    last = graph.blocks[-1].name
    with torch.no_grad():
        for batch in _batches(asked, first, first + total):
            kept = graph.run(batch, keep=(graph.scores, last))
            loss += float(kept[last])
            samples += batch.num_samples
            if counted is not None:
                counted.update(kept[graph.scores], batch.labels)
    if not samples:
        raise TrainingError("there are no samples to look at", hint="give other --data, or fewer broken rows")
    where = checkpoint or checkpoints.newest(folder)
    return Evaluation(
        metric=name,
        value=counted.value() if counted is not None else None,
        loss=loss / samples,
        samples=int(samples),
        on=on,
        held_out=held_out,
        checkpoint=str(where),
    )


def _held_out(source: Source, trained: int) -> tuple[Source, int, str, bool]:
    """Return the run's data beyond what an epoch saw, or all of it where there is nothing beyond."""
    if source.num_samples is None or source.num_samples > trained:
        return source, trained, f"the run's data from sample {trained:,} on, which it was not trained on", True
    return source, 0, "the run's own data, all of which it was trained on: give --data for others", False


def _check_same_shape(source: Source, trained_on: Source) -> None:
    """Refuse data that the model cannot read."""
    given, expected = source.schema, trained_on.schema
    if (given.num_dense, given.num_slots) != (expected.num_dense, expected.num_slots):
        raise TrainingError(
            f"the data have {given.num_dense} numbers and {given.num_slots} slots, "
            f"the model was trained on {expected.num_dense} and {expected.num_slots}",
            hint="give data with the same columns",
        )


def _batches(source: Source, first: int, last: int) -> Iterator[Batch]:
    """Yield the samples in order."""
    for begin in range(first, last, BATCH):
        batch = source.read(begin, min(begin + BATCH, last))
        if batch.num_samples:
            yield batch
