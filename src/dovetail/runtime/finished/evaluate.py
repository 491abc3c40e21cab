"""How good a run's model is on data it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail.data.load import DATA, open_data, options_known
from dovetail.data.source import Source
from dovetail.data.transforms import by_name
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.predict import Tell, asked_source, figures_of, quietly, without_ranking
from dovetail.runtime.finished.restore import check_by_name, restore_model
from dovetail.runtime.model.kept_model import kept_model
from dovetail.runtime.samples import tell_of_bad_rows
from dovetail.runtime.trust import check_trusted
from dovetail.spec.run import Run


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

    def __repr__(self) -> str:
        """Return the figures, and of what."""
        figures = ", ".join(f"{name} {value:.4g}" for name, value in {**self.metrics, "loss": self.loss}.items())
        return f"<Evaluation: {figures} over {self.samples:,} samples of {self.on}>"


def evaluate_run(
    folder: Path | str,
    *,
    data: Any = None,
    data_options: Mapping[str, Any] | None = None,
    num_samples: int = 100_000,
    metrics: Sequence[str] | None = None,
    checkpoint: Path | None = None,
    model: nn.Module | None = None,
    source: Any = None,
    trust: bool = False,
    tell: Tell = quietly,
) -> Evaluation:
    """Return how good the model of a run is.

    Absent `data`, it is on the run's validation data, else on its own data beyond what it was trained on.
    `data` is whatever `train` takes. Its options are those of the run, with `data_options` in their place where given;
    columns are found by name. `model` and `source` are the run's own model and data where those were objects. With
    `trust`, code that the folder names is run even where others can write the folder.
    """
    folder = Path(folder)
    blueprint = Blueprint.read(folder)
    run, by_object = blueprint.run, data is not None and not isinstance(data, str)
    options = dict(data_options or {})
    model = model if model is not None else kept_model(folder, run, trust=trust)
    given = asked_source(data, options, blueprint, model, labels=True) if by_object else None
    source = None if source is None else asked_source(source, {}, blueprint, model, labels=True)
    if source is None and data is not None and run.data.name not in DATA and ":" not in run.data.name:
        # The run's own are an object of a Python program.
        source = given or asked_source(data, options, blueprint, model, labels=True)
    check_by_name(run, model=model, source=source)
    check_trusted(folder, run, trust=trust, own_model=model is not None, own_data=source is not None)
    trained_on = (
        source if source is not None else open_data(run.data.name, run.data.options, key_file=run.checkpoint.key_file)
    )
    restored = restore_model(folder, model=model, source=trained_on, checkpoint=checkpoint, trust=trust)
    if data is None and not options:
        asked, first, on, held_out = _held_out(blueprint, trained_on)
    elif given is not None:
        asked, first, on, held_out = given, 0, "the data given", True
    else:
        asked = asked_source(data, options, blueprint, model, labels=True)
        first, on, held_out = 0, f"the data given, `{data or run.data.name}`", True
    names = without_ranking(restored, metrics or blueprint.metrics)
    if ranking := [name for name in metrics or () if name not in names]:
        raise TrainingError(
            f"`{ranking[0]}` ranks all items, which a run's folder does not list",
            hint="choose auc or log-loss, or use dovetail.models.evaluate with result.load_model()",
        )
    read, asked = asked, by_name(asked, trained_on.schema)
    figures, samples = figures_of(restored, asked, first=first, num_samples=num_samples, metrics=names)
    tell_of_bad_rows(read, tell)
    return Evaluation(
        metric=names[0] if names else None,
        value=figures[names[0]] if names else None,
        metrics={name: figures[name] for name in names},
        loss=figures["loss"],
        samples=samples,
        on=on,
        held_out=held_out,
        checkpoint=str(checkpoint or checkpoints.newest(folder)),
    )


def load_validation(run: Run) -> Source | None:
    """Return the data that a run names to be tried on; None where it names none."""
    settings = run.validation
    if not (settings.name or settings.options):
        return None
    name = settings.name or run.data.name
    known = run.data.options if name == run.data.name else options_known(name, run.data.options)
    return open_data(name, {**known, **settings.options}, key_file=run.checkpoint.key_file)


def _held_out(blueprint: Blueprint, source: Source) -> tuple[Source, int, str, bool]:
    """Return a run's validation data, else its data beyond what an epoch saw, or all of it where there is no more."""
    validation, trained = load_validation(blueprint.run), blueprint.all_samples
    if validation is not None:
        named = blueprint.run.validation.options.get("path") or blueprint.run.validation.name
        return validation, 0, "the run's validation data" + (f", `{named}`" if named else ""), True
    if source.num_samples is None or source.num_samples > trained:
        return source, trained, f"the run's data from sample {trained:,} on, which it was not trained on", True
    return source, 0, "the run's own data, all of which it was trained on: give --data for others", False
