"""How good a run's model is on data it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from dovetail.data.batch import Batch
from dovetail.data.by_name import by_name
from dovetail.data.load import load_data, options_known
from dovetail.data.source import Source
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.metrics import make_metric
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import check_by_name, restore_model
from dovetail.runtime.trust import check_trusted
from dovetail.spec.run import Run

BATCH = 2048


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics over samples, and where the samples came from."""

    metric: str | None
    """The first of the metrics."""
    value: float | None
    metrics: dict[str, float]
    """All of them, by name."""
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
    metrics: Sequence[str] | None = None,
    checkpoint: Path | None = None,
    trust: bool = False,
) -> Evaluation:
    """Return how good the model of a run is; absent `data`: on the run's data beyond what it was trained on.

    The data's options are those of the run, with `data_options` in their place where given. Columns are found by name.
    With `trust`, code that the folder names is run even where others can write the folder.
    """
    blueprint = Blueprint.read(folder)
    names = tuple(metrics or blueprint.metrics)
    run = blueprint.run
    check_by_name(run, model=None, source=None)
    check_trusted(folder, run, trust=trust)
    trained_on = load_data(run.data.name, **run.data.options)
    model = restore_model(folder, source=trained_on, checkpoint=checkpoint, trust=trust)
    if data is None and not data_options:
        source, first, on, held_out = _held_out(trained_on, blueprint.samples)
    else:
        source = load_data(data or run.data.name, **_options(run, data, data_options or {}))
        first, on, held_out = 0, f"the data given, `{data or run.data.name}`", True
    source = by_name(source, trained_on.schema)
    if isinstance(model, LayerGraph):
        names = _without_ranking(names, asked=bool(metrics))
    counted = {name: make_metric(name) for name in names}
    total = num_samples if source.num_samples is None else min(num_samples, source.num_samples - first)
    loss = samples = 0.0
    model.eval()
    with torch.no_grad():
        for batch in _batches(source, first, first + total):
            batch_loss, scores = model.outcome(batch)
            loss += float(batch_loss)
            samples += batch.num_samples
            for each in counted.values():
                each.update(scores, batch.labels)
    if not samples:
        raise TrainingError("there are no samples to look at", hint="give other --data, or fewer broken rows")
    where = checkpoint or checkpoints.newest(folder)
    return Evaluation(
        metric=names[0] if names else None,
        value=counted[names[0]].value() if names else None,
        metrics={name: each.value() for name, each in counted.items()},
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


def _options(run: Run, data: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the data: those of the run, as far as the other data know them, and those given."""
    kept = run.data.options if data in (None, run.data.name) else options_known(data, run.data.options)
    return {**kept, **given}


def _without_ranking(names: tuple[str, ...], *, asked: bool) -> tuple[str, ...]:
    """Return the metrics without those that rank all items, which a run's folder does not list; refuse if asked for."""
    ranking = [name for name in names if name.startswith("recall@")]
    if asked and ranking:
        raise TrainingError(
            f"`{ranking[0]}` ranks all items, which a run's folder does not list",
            hint="choose auc or log-loss, or use dovetail.models.evaluate with result.load_model()",
        )
    return tuple(name for name in names if name not in ranking)


def _batches(source: Source, first: int, last: int) -> Iterator[Batch]:
    """Yield the samples in order."""
    for begin in range(first, last, BATCH):
        batch = source.read(begin, min(begin + BATCH, last))
        if batch.num_samples:
            yield batch
