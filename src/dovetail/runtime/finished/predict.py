"""What a run's model says to samples that nobody knows the labels of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dovetail.data.adopt import as_source
from dovetail.data.load import DATA, load_data
from dovetail.data.source import Source
from dovetail.data.tables import as_table
from dovetail.models.metrics import click_scores
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import read_blueprint, restore_model
from dovetail.runtime.finished.scores import answers, batches_of
from dovetail.runtime.folder import BEST

COLUMN_FILES = ("csv", "parquet")
CHANCES = ("logistic", "cross-entropy")
"""Losses of which one score a sample is the log-odds of something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Scores of samples, in the order of the data; broken rows are left out."""

    rows: NDArray[np.int64]
    """Their numbers in the data, from 0."""
    scores: NDArray[np.float32]
    """What the model answers: [n], or [n, ...] where it gives several numbers a sample."""
    probabilities: NDArray[np.float32] | None
    """Where the model is trained by log-loss and gives one score a sample, or two: the chance of a 1."""


def predict_run(
    folder: Path,
    data: Any = None,
    *,
    data_options: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    source: Source | None = None,
    checkpoint: Path | None = None,
    num_samples: int | None = None,
) -> Predictions:
    """Return the scores of all samples of some data, by the best checkpoint of a run, else by its newest.

    `data` is whatever `train` takes; a name may be left out where it is the run's. Options that are not given are the
    run's, and labels are not needed. `model` and `source` are the run's own where those were objects.
    """
    parts = list(
        predictions(
            folder,
            data,
            data_options=data_options,
            model=model,
            source=source,
            checkpoint=checkpoint,
            num_samples=num_samples,
        )
    )
    if not parts:
        raise TrainingError("the data have no samples that are not broken", hint="look at them: dovetail data inspect")
    chances = [part.probabilities for part in parts if part.probabilities is not None]
    return Predictions(
        rows=np.concatenate([part.rows for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        probabilities=np.concatenate(chances) if len(chances) == len(parts) else None,
    )


def predictions(
    folder: Path,
    data: Any = None,
    *,
    data_options: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    source: Source | None = None,
    checkpoint: Path | None = None,
    num_samples: int | None = None,
) -> Iterator[Predictions]:
    """Yield the scores of some samples after the other; see `predict_run`."""
    blueprint = read_blueprint(folder)
    asked = _asked(data, dict(data_options or {}), blueprint)
    where = checkpoint or (folder / BEST if (folder / BEST).is_dir() else checkpoints.newest(folder))
    graph = restore_model(folder, model=model, source=source or asked, checkpoint=where)
    _check(asked, blueprint)
    has_chance = graph.recipe.loss in CHANCES
    for batch, scores in answers(graph, batches_of(asked, 0, num_samples)):
        chances = _chances(scores) if has_chance else None
        flat = scores[:, 0] if scores.dim() == 2 and scores.shape[1] == 1 else scores
        yield Predictions(
            rows=batch.sample_ids.numpy().copy(), scores=flat.float().numpy().copy(), probabilities=chances
        )


def _asked(data: Any, options: dict[str, Any], blueprint: Blueprint) -> Source:
    """Return the samples that are asked about."""
    run = blueprint.run.data
    if data is None or isinstance(data, str):
        name = data or run.name
        kept = run.options if name == run.name or {name, run.name} <= set(COLUMN_FILES) else {}
        wanted = {**kept, **options}
        if name in COLUMN_FILES and "label" not in options:
            wanted["label"] = None
        if name not in DATA and ":" not in name:
            raise TrainingError(
                f"the data of this run were an object of a Python program, `{name}`",
                hint="say which samples to score: --data csv --data-option path=..., or result.predict(data)",
            )
        return load_data(name, **wanted)
    if isinstance(data, Source):
        return data
    if as_table(data) is not None:
        known = {key: value for key, value in run.options.items() if key != "label"}
        names = blueprint.fingerprint
        if names is not None and not {"dense", "slots", "fields"} & {*known, *options}:
            known |= {"dense": list(names.dense), "slots": list(names.slots), "fields": list(names.fields)}
        return as_source(data, **{"needs_label": False, **known, **options})
    return as_source(data, **{**run.options, **options})


def _check(source: Source, blueprint: Blueprint) -> None:
    """Refuse samples that the model cannot read."""
    names, schema = blueprint.fingerprint, source.schema
    if names is not None and (schema.num_dense, schema.num_slots) != (len(names.dense), len(names.slots)):
        raise TrainingError(
            f"the data have {schema.num_dense} numbers and {schema.num_slots} slots, the model was trained on "
            f"{len(names.dense)} and {len(names.slots)}",
            hint="give data with the same columns",
        )


def _chances(scores: torch.Tensor) -> NDArray[np.float32] | None:
    """Return the chance of a 1; None where a sample has other than one score or two."""
    if scores.dim() > 2 or (scores.dim() == 2 and scores.shape[1] > 2):
        return None
    return torch.sigmoid(click_scores(scores).float()).numpy().copy()
