"""What a run's model says to samples that nobody knows the labels of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dovetail.data.adopt import as_source, as_table, table_options
from dovetail.data.batch import Batch
from dovetail.data.load import DATA, TABLES, named_data, open_data, options_known
from dovetail.data.schema import Field, Schema, Slot
from dovetail.data.source import Source
from dovetail.data.transforms import by_name
from dovetail.models.answers import LossSpec, Scores, heads_of
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.loss_names import base_name
from dovetail.models.metrics import click_scores, make_metric
from dovetail.models.whole import inputs_of
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.restore import restore_model
from dovetail.runtime.folder import BEST
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.dry_run import check_rows
from dovetail.runtime.model.kept_model import kept_model
from dovetail.runtime.samples import tell_of_bad_rows
from dovetail.runtime.trust import check_trusted

BATCH = 2048
Tell = Callable[[str], None]


def quietly(_: str) -> None:
    """Say nothing."""


def answers(model: Model, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Scores]]:
    """Yield each batch with the model's answer; labels are not looked at."""
    model.eval()
    for batch in batches:
        with torch.no_grad():
            answer = model.predict(batch)
        check_rows(answer, batch)
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


Floats = NDArray[np.float32]
Answers = Floats | dict[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Predictions:
    """Scores of samples, in the order of the data; broken rows are left out."""

    rows: NDArray[np.int64]
    """Their numbers in the data, from 0."""
    scores: Answers
    """What the model answers: [n], or [n, ...] where it gives several numbers a sample; several answers by name."""
    probabilities: Answers | None
    """Where scores are log-odds: the chance of a 1, of each label, or of each of three classes and more."""

    def __repr__(self) -> str:
        """Return how many there are, and what they are called."""
        names = [name for name in ("scores", "probabilities") if getattr(self, name) is not None]
        shapes = ", ".join(f".{name} {_shape(getattr(self, name))}" for name in names)
        return f"<Predictions of {len(self.rows):,} rows: .rows, {shapes}>"


COLUMNS = {"dense", "slots", "fields"}
"""Options of data that name its columns."""


def predict_run(
    folder: Path | str,
    data: Any = None,
    *,
    data_options: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    source: Source | None = None,
    checkpoint: Path | None = None,
    num_samples: int | None = None,
    trust: bool = False,
) -> Predictions:
    """Return the scores of all samples of some data, by the best checkpoint of a run, else by its newest.

    `data` is whatever `train` takes; a name may be left out where it is the run's. Options that are not given are the
    run's, and labels are not needed; columns are found by name. `model` and `source` are the run's own where those were
    objects. With `trust`, code that the folder names is run even where others can write the folder.
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
            trust=trust,
        )
    )
    if not parts:
        raise TrainingError("the data have no samples that are not broken", hint="look at them: dovetail data inspect")
    chances = [part.probabilities for part in parts if part.probabilities is not None]
    return Predictions(
        rows=np.concatenate([part.rows for part in parts]),
        scores=_joined([part.scores for part in parts]),
        probabilities=_joined(chances) if len(chances) == len(parts) else None,
    )


def predictions(
    folder: Path | str,
    data: Any = None,
    *,
    data_options: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    source: Source | None = None,
    checkpoint: Path | None = None,
    num_samples: int | None = None,
    trust: bool = False,
    tell: Tell = quietly,
) -> Iterator[Predictions]:
    """Yield the scores of some samples after the other; see `predict_run`."""
    folder = Path(folder)
    blueprint = Blueprint.read(folder)
    check_trusted(folder, blueprint.run, trust=trust, own_model=model is not None, own_data=data is not None)
    model = model if model is not None else kept_model(folder, blueprint.run, trust=trust)
    asked = asked_source(data, dict(data_options or {}), blueprint, model, labels=False)
    where = checkpoint or (folder / BEST if (folder / BEST).is_dir() else checkpoints.newest(folder))
    read, asked = asked, by_name(asked, _wanted(blueprint, asked.schema))
    restored = restore_model(folder, model=model, source=source or asked, checkpoint=where, trust=trust)
    loss = _loss_of(restored, blueprint)
    for batch, scores in answers(restored, batches_of(asked, 0, num_samples)):
        yield Predictions(rows=batch.sample_ids.numpy().copy(), **_as_arrays(scores, loss))
    tell_of_bad_rows(read, tell)


def asked_source(
    data: Any, options: dict[str, Any], blueprint: Blueprint, model: nn.Module | None, *, labels: bool
) -> Source:
    """Return the samples that are asked about, read as the run's own; with `labels`, theirs too."""
    run = blueprint.run.data
    if data is None or isinstance(data, str):
        name, options = named_data(data or run.name, options)
        kept = run.options if name == run.name else options_known(name, run.options)
        kept = kept if labels else _without_weight(kept)
        wanted = {**kept, **options}
        if name in TABLES and not COLUMNS & wanted.keys():
            wanted |= blueprint.looks.columns()
        if name in TABLES and "label" not in options and not labels:
            wanted["label"] = None
        if name not in DATA and ":" not in name:
            raise TrainingError(
                f"the data of this run were an object of a Python program, `{name}`",
                hint="say which samples to score: --data today.csv, or result.predict(data)",
            )
        return open_data(name, wanted, key_file=blueprint.run.checkpoint.key_file)
    if isinstance(data, Source):
        return data
    if as_table(data) is not None:
        known = table_options(run.options)
        if not labels:
            known = {key: value for key, value in _without_weight(known).items() if key != "label"}
        if not COLUMNS & {*known, *options}:
            known |= blueprint.looks.columns()
        return as_source(data, **{"needs_label": labels, **known, **options})
    names = inputs_of(model)
    return as_source(data, **{**({} if names is None else {"names": names}), **run.options, **options})


def _without_weight(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of data whose samples need not count: columns that only training reads are not asked for."""
    return {key: value for key, value in options.items() if key != "weight"}


def _wanted(blueprint: Blueprint, given: Schema) -> Schema:
    """Return the columns that the model was trained on, with what is given of them."""
    its, slots = blueprint.looks, {slot.name: slot for slot in given.slots}
    fields = {field.name: field for field in given.fields}
    return replace(
        given,
        dense=its.numbers,
        slots=tuple(slots.get(name, Slot(name=name)) for name in its.slots),
        fields=tuple(fields.get(name, Field(name=name)) for name in its.fields),
    )


def _loss_of(model: Model, blueprint: Blueprint) -> LossSpec | None:
    """Return the loss that the model was trained by; None where it is an object of a Python program."""
    own = model.recipe.loss if isinstance(model, LayerGraph) else None
    return blueprint.run.model.loss or own


def _shape(answers: Answers) -> str:
    """Return the shape of answers in words."""
    if isinstance(answers, dict):
        return ", ".join(f"[{name!r}] {_shape(each)}" for name, each in answers.items())
    return str(list(answers.shape))


def _as_arrays(scores: Scores, loss: LossSpec | None) -> dict[str, Any]:
    """Return scores and probabilities; parts that are one number for all samples are no scores."""
    if isinstance(scores, torch.Tensor) and scores.dim():
        return {"scores": _flat(scores), "probabilities": _chances(scores, loss if isinstance(loss, str) else None)}
    parts = {} if isinstance(scores, torch.Tensor) else heads_of(scores)
    parts = {name: part for name, part in parts.items() if part.dim()}
    if not parts:
        raise TrainingError(
            "the model answers with its loss alone, which is no score of a sample",
            hint="have forward answer {'loss': ..., 'score': ...}, or call parts of result.load_model().module",
        )
    losses = dict.fromkeys(parts, loss) if isinstance(loss, str) else dict(loss or {})
    chances = {name: chance for name in parts if (chance := _chances(parts[name], losses.get(name))) is not None}
    return {"scores": {name: _flat(part) for name, part in parts.items()}, "probabilities": chances or None}


def _flat(scores: torch.Tensor) -> Floats:
    """Return scores as an array; [n, 1] is [n]."""
    flat = scores[:, 0] if scores.dim() == 2 and scores.shape[1] == 1 else scores
    return flat.float().numpy().copy()


def _chances(scores: torch.Tensor, loss: str | None) -> Floats | None:
    """Return the chance of a 1, of each label, or of each class; None where scores are no log-odds."""
    loss = None if loss is None else base_name(loss)
    scores = scores.float()
    if loss == "cross-entropy" and scores.dim() == 2 and scores.shape[1] > 2:
        return torch.softmax(scores, dim=1).numpy().copy()
    if loss == "cross-entropy" or (loss == "logistic" and (scores.dim() == 1 or scores.shape[1:] == (1,))):
        return torch.sigmoid(click_scores(scores)).numpy().copy() if scores.dim() <= 2 else None
    return torch.sigmoid(scores).numpy().copy() if loss == "logistic" else None


def _joined(parts: Sequence[Answers]) -> Answers:
    """Return answers one after the other."""
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts if isinstance(part, dict)]) for name in parts[0]}
    return np.concatenate([part for part in parts if not isinstance(part, dict)])
