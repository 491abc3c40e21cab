"""Figures of a run for other programs that show them: TensorBoard, Weights & Biases, MLflow, or one's own."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dovetail.errors import did_you_mean
from dovetail.logs import tell
from dovetail.references import import_function
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.result import Validated
from dovetail.runtime.folder import TENSORBOARD
from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.spec.run import Run

EVERY_S = 1.0
"""How often figures are passed on."""
FIGURES = ("loss", "auc", "samples_per_s", "learning_rate", "gradient_norm")


class Logger(Protocol):
    """Where figures go."""

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin with a run, given its folder and all its settings."""
        ...

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Take in figures of one moment, after so many steps."""
        ...

    def close(self) -> None:
        """End."""
        ...


class TensorBoard:
    """Says where the run's figures are: every run writes them for TensorBoard, those of the validation data too."""

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Say how to look at them."""
        tell(f"figures for TensorBoard: tensorboard --logdir {folder / TENSORBOARD}")

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Write nothing twice."""

    def close(self) -> None:
        """Leave the file to those who write it."""


class WandB:
    """Weights & Biases; keywords are those of `wandb.init`."""

    def __init__(self, **settings: Any) -> None:
        """See that it is installed."""
        self._wandb, self._settings = needed("wandb"), settings
        self._run: Any = None

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run there, named like the folder."""
        known = {"dir": str(folder), "name": folder.name, "config": dict(settings)}
        self._run = self._wandb.init(**(known | self._settings))

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Pass figures on."""
        if self._run is not None:
            self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """End the run there."""
        if self._run is not None:
            self._run.finish()
            self._run = None


class MLflow:
    """MLflow; keywords are those of `mlflow.start_run`."""

    def __init__(self, **settings: Any) -> None:
        """See that it is installed."""
        self._mlflow, self._settings, self._is_open = needed("mlflow"), settings, False

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run there, named like the folder."""
        self._mlflow.start_run(**({"run_name": folder.name} | self._settings))
        self._is_open = True
        self._mlflow.log_params({name: str(value)[:500] for name, value in flat(settings).items()})

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Pass figures on."""
        self._mlflow.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        """End the run there."""
        if self._is_open:
            self._mlflow.end_run()
            self._is_open = False


LOGGERS: dict[str, Callable[[], Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


class Logging(Callback):
    """Passes a run's figures on to a logger, once a second and whenever the model was tried."""

    def __init__(self, logger: Logger) -> None:
        """Keep where they go."""
        self._logger = logger
        self._logged = (-math.inf, -1)

    def begin(self, folder: Path, run: Run) -> None:
        """Begin with the run's settings."""
        self._logger.begin(folder, msgspec.to_builtins(run))

    def report(self, report: Report) -> None:
        """Pass figures on, where it is time and there are new ones."""
        logged_s, step = self._logged
        if report.step == step or (time.monotonic() - logged_s < EVERY_S and report.state != "done"):
            return
        self._logged = (time.monotonic(), report.step)
        self._log({name: getattr(report, name) for name in FIGURES} | {"epoch": float(report.epoch)}, report.step)

    def validated(self, found: Validated) -> None:
        """Pass figures of the validation data on."""
        self._log({f"validation/{name}": value for name, value in found.figures.items()}, found.step)

    def _log(self, figures: Mapping[str, float | None], step: int) -> None:
        """Pass those on that are numbers."""
        numbers = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
        if numbers:
            self._logger.log(numbers, step)

    def close(self) -> None:
        """Close the logger."""
        self._logger.close()


def make_logger(name: str) -> Logger:
    """Return the logger `tensorboard`, `wandb` or `mlflow`, or what `package.module:Class` makes."""
    if ":" in name:
        made: Logger = import_function(name, what="logger", error=TrainingError)()
        return made
    if name not in LOGGERS:
        raise TrainingError(
            f"there is no logger `{name}`", hint=did_you_mean(name, LOGGERS) + ", or package.module:Class for your own"
        )
    return LOGGERS[name]()


def needed(package: str) -> Any:
    """Return a package that not everyone has."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise TrainingError(f"`{package}` is not installed", hint=f"pip install {package}") from None


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings under dotted keys."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) and value else {f"{before}{name}": value}
    return found
