"""What a run came to."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dovetail.runtime.checkpoint import RunManifest, folder_of
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import BEST, CHECKPOINTS, MODEL, VALIDATION, PrivacySummary, RunSummary, WorkerSummary

if TYPE_CHECKING:
    from torch import nn

    from dovetail.data.source import Source
    from dovetail.runtime.finished.export import Exported
    from dovetail.runtime.finished.predict import Predictions
    from dovetail.runtime.messages import Report
    from dovetail.runtime.model.build import Model


MORE_IS_BETTER = ("auc", "accuracy", "recall")
"""How the names of metrics begin of which more is better; of the others, less is."""


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    """How good the model of one checkpoint is."""

    step: int
    samples: int
    """Trained on before, over all epochs."""
    figures: dict[str, float | None]
    """The mean loss as `loss`, and metrics."""
    is_best: bool

    def __repr__(self) -> str:
        """Return the figures, and when."""
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items() if value is not None)
        return f"<Validated after {self.step:,} steps: {figures}{', the best so far' if self.is_best else ''}>"


def is_better(metric: str, value: float | None, before: float | None, least_gain: float = 0.0) -> bool:
    """Say whether a figure is better than another by more than `least_gain`; a number is better than none."""
    if value is None or math.isnan(value):
        return False
    if before is None or math.isnan(before):
        return True
    gain = value - before if metric.startswith(MORE_IS_BETTER) else before - value
    return gain > least_gain


def read_validated(folder: Path) -> list[Validated]:
    """Return what a run's folder says, oldest first; a line that was cut off is left out."""
    path = folder / VALIDATION
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            found.append(msgspec.json.decode(line, type=Validated))
        except msgspec.MsgspecError:
            continue
    return found


M = TypeVar("M", bound="nn.Module")


@dataclass(slots=True)
class RunPace:
    """How fast a run goes from the last report before its first step to the first one after its last."""

    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None

    def add(self, report: Report) -> None:
        """Take in a report."""
        if report.state not in ("running", "saving", "done"):
            return
        now = (time.monotonic(), report.samples)
        if self.first is None or now[1] <= self.first[1]:  # no step is done yet, or it went back to a checkpoint
            self.first = self.last = now
        elif self.last is None or now[1] != self.last[1]:
            self.last = now

    @property
    def samples_per_s(self) -> float:
        """Return samples over seconds; 0 where there were no two reports."""
        if self.first is None or self.last is None or self.last[0] <= self.first[0]:
            return 0.0
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingResult:
    """What a run came to; `load_model` returns the trained model."""

    folder: Path
    samples: int
    """Over all epochs, since the run began."""
    is_complete: bool
    """False where it was stopped before its last sample."""
    interrupted: bool = False
    """Whether Ctrl-C stopped it: its state is kept, and `resume` goes on."""
    seconds: float
    """From the first process to the last checkpoint."""
    samples_per_s: float
    """While it trained."""
    steady_samples_per_s: float | None = None
    """Once it went steadily: its first steps, in which kernels compile and rows are new, are left out."""
    steady_spread: float | None = None
    """How much that went up and down, relative."""
    loss: float
    auc: float
    """Of the last samples that were trained on, as they were seen; NaN where the model has no such score."""
    metrics: Mapping[str, float]
    """Other metrics of the same samples, by name."""
    step: int
    workers: Mapping[str, Mapping[str, float]]
    servers: Mapping[str, Mapping[str, float]]
    imbalance: float
    """Rows of the fullest server over the mean."""
    checkpoint: Path
    validation: tuple[Validated, ...] = ()
    """What came of each trial on the validation data, oldest first."""
    best: Validated | None = None
    """The best of them."""
    best_checkpoint: Path | None = None
    """Its folder; the model of it is `load_model(best=True)`."""
    privacy: PrivacySummary | None = None
    """What was promised of single samples, and spent."""
    _model: nn.Module | None = None
    _source: Source | None = None

    def __repr__(self) -> str:
        """Return what came of the run, and what may be done next."""
        figures = {"loss": self.loss, "auc": self.auc, **self.metrics}
        known = [f"{name} {value:.4g}" for name, value in figures.items() if not math.isnan(value)]
        best = [] if self.best is None else [f"best at step {self.best.step:,}"]
        pace = f"{self.samples:,} samples in {self.step:,} steps and {self.seconds:.1f} s"
        private = [] if self.privacy is None else [self.privacy.words]
        words = ", ".join([f"{pace} ({self.samples_per_s:,.0f} samples/s)", *known, *best, *private])
        folder = f'"{self.folder}"'
        is_kept = self._model is None or (self.folder / MODEL).is_file()
        model = [] if is_kept else ["model=model"]
        asked = ", ".join([folder, *model, *([] if self._source is None else ["source=data"])])
        then = ["result.load_model()", "result.predict(data)", 'result.export("out")', f"dovetail.evaluate({asked})"]
        if not self.is_complete:
            words = f"{'interrupted' if self.interrupted else 'stopped before its end'}: {words}"
            asked = ", ".join([folder, *model, *([] if self._source is None else ["data=data"])])
            then = [f"dovetail.resume({asked})", *then]
        return f"<TrainingResult of {self.folder}: {words}\n next: {', '.join(then)}>"

    def load_model(self, *, best: bool = False, trust: bool = False) -> Model:
        """Return the trained model with all its parameters, for use without servers; with `best`, that of the best.

        `trust` is `restore_model`'s.
        """
        from dovetail.runtime.finished.restore import restore_model  # noqa: PLC0415 - torch, and compilers

        chosen = self._chosen(best)
        return restore_model(self.folder, model=self._model, source=self._source, checkpoint=chosen, trust=trust)

    def fill(self, model: M, *, best: bool = False, trust: bool = False) -> M:
        """Give the user's own module the trained parameters, and return it."""
        from dovetail.runtime.finished.restore import restore_into  # noqa: PLC0415

        return restore_into(model, self.folder, checkpoint=self._chosen(best), trust=trust)

    def predict(
        self, data: Any = None, *, best: bool | None = None, trust: bool = False, **data_options: Any
    ) -> Predictions:
        """Return the model's scores of some samples, whatever `train` takes; labels are not needed.

        Absent `best`, the best checkpoint is taken where there is one; absent `data`, the run's own.
        """
        from dovetail.runtime.finished.predict import predict_run  # noqa: PLC0415

        chosen = self._chosen(self.best_checkpoint is not None if best is None else best)
        return predict_run(
            self.folder,
            self._source if data is None else data,
            data_options=data_options,
            model=self._model,
            source=self._source,
            checkpoint=chosen,
            trust=trust,
        )

    def export(self, out: str | Path, *, best: bool = False, trust: bool = False) -> Exported:
        """Write the model into files that need no Dovetail; see `dovetail export`."""
        from dovetail.runtime.finished.export import export_run  # noqa: PLC0415

        chosen = self._chosen(best)
        return export_run(
            self.folder, Path(out), checkpoint=chosen, model=self._model, source=self._source, trust=trust
        )

    def _chosen(self, best: bool) -> Path:
        """Return the last checkpoint, or the best."""
        if not best:
            return self.checkpoint
        if self.best_checkpoint is None:
            raise TrainingError("no checkpoint is the best: nothing was validated", hint="give `validation` data")
        return self.best_checkpoint

    def facts(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "samples": self.samples,
            "is_complete": self.is_complete,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "samples_per_s": round(self.samples_per_s, 1),
            "steady_samples_per_s": None if self.steady_samples_per_s is None else round(self.steady_samples_per_s, 1),
            "loss": None if math.isnan(self.loss) else self.loss,
            "auc": None if math.isnan(self.auc) else self.auc,
            "metrics": {name: None if math.isnan(value) else value for name, value in self.metrics.items()},
            "step": self.step,
            "workers": self.workers,
            "servers": self.servers,
            "imbalance": self.imbalance,
            "validation": [msgspec.to_builtins(found) for found in self.validation],
            "privacy": None if self.privacy is None else msgspec.to_builtins(self.privacy),
            "best_checkpoint": None if self.best_checkpoint is None else str(self.best_checkpoint),
            "folder": str(self.folder),
            "checkpoint": str(self.checkpoint),
        }


def read_result(
    folder: Path,
    pace: RunPace,
    total_samples: int,
    *,
    last: Report,
    model: nn.Module | None = None,
    source: Source | None = None,
) -> TrainingResult:
    """Return the result of a run that is over: of its last checkpoint, as steps after it are not kept.

    Where a full disk left no summary, the figures are those of the `last` report.
    """
    try:
        summary = RunSummary.read(folder)
    except TrainingError:
        summary = _summary_of(last)
    checkpoint = folder / CHECKPOINTS / summary.checkpoint
    kept = RunManifest.read(checkpoint)
    tried = read_validated(folder)
    best = next((each for each in reversed(tried) if each.is_best), None)
    here = sum(worker.samples for worker in summary.workers.values())
    return TrainingResult(
        folder=folder,
        samples=kept.position,
        is_complete=kept.position >= total_samples,
        seconds=summary.seconds,
        samples_per_s=pace.samples_per_s or here / max(summary.seconds, 1e-9),
        loss=_number(summary.loss),
        auc=_number(summary.auc),
        metrics={name: _number(value) for name, value in summary.metrics.items()},
        step=kept.step,
        workers=msgspec.to_builtins(summary.workers),
        servers=msgspec.to_builtins(summary.servers),
        imbalance=summary.imbalance,
        checkpoint=checkpoint,
        validation=tuple(tried),
        best=best,
        best_checkpoint=folder / BEST if best is not None else None,
        privacy=summary.privacy,
        _model=model,
        _source=source,
    )


def _summary_of(report: Report) -> RunSummary:
    """Return what the last report knows of a run: how long it and its workers took is not among it."""
    return RunSummary(
        step=report.step,
        samples=report.samples,
        seconds=0.0,
        loss=report.loss,
        auc=report.auc,
        workers={
            worker.name: WorkerSummary(
                samples=worker.samples, share=worker.share, busy_s=0.0, idle_s=0.0, idle=worker.idle
            )
            for worker in report.workers
        },
        servers={},
        imbalance=1.0,
        checkpoint=folder_of(Path(), report.checkpoint_step).name,
    )


def _number(value: float | None) -> float:
    """Return a number of a JSON file, where nothing stands for NaN."""
    return math.nan if value is None else value
