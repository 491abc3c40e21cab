"""Trying the model on data it is not trained on, while the run goes on: the best checkpoint is kept.

The coordinator keeps a checkpoint whenever one is due; here, beside the launcher, a thread restores the model from it
and looks how good it is. The run does not wait for it; where checkpoints come faster than they can be tried, some are
left out. A run in one process tries each in its own thread, between two steps.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
from torch import nn

from dovetail.data.source import Source
from dovetail.data.transforms import by_name
from dovetail.errors import DovetailError
from dovetail.models.metrics import make_metric
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.figures import TensorBoardFile
from dovetail.runtime.finished.evaluate import load_validation
from dovetail.runtime.finished.predict import figures_of, without_ranking
from dovetail.runtime.finished.restore import restore_model
from dovetail.runtime.finished.result import Validated, is_better, read_validated
from dovetail.runtime.folder import BEST, TENSORBOARD, VALIDATION
from dovetail.runtime.prepare.run_folder import load_source

TRIED = "tried"
"""Where a checkpoint lies while it is tried: the run may drop its own."""


class Validator:
    """Tries checkpoints as they come."""

    def __init__(
        self,
        folder: Path,
        blueprint: Blueprint,
        *,
        model: nn.Module | None = None,
        source: Source | None = None,
        data: Source | None = None,
        on_validated: Callable[[Validated], None] = lambda _: None,
        beside: bool = True,
    ) -> None:
        """Open the data; `model` and `source` are the run's where they are objects, `data` what it is tried on.

        Where it is not done `beside` the run, whoever asks waits for it: one process that trains draws its numbers and
        stops early the same way every time then.
        """
        self._is_beside = beside
        self._folder, self._blueprint, self._model = folder, blueprint, model
        self._settings = blueprint.run.validation
        self._on_validated = on_validated
        self._metrics = self._blueprint.metrics
        if self._settings.metric not in ("loss", *self._metrics):
            make_metric(self._settings.metric)
            self._metrics = (*self._metrics, self._settings.metric)
        self._trained_on = load_source(blueprint.run, source)
        self._data, self._first = self._find_data(data)
        self.history = list(read_validated(folder))
        """Those of an earlier start of the run too."""
        self._seen_step = max((each.step for each in self.history), default=0)
        self._seen_position = max((each.samples for each in self.history), default=0)
        self._thread: threading.Thread | None = None
        self._problem: DovetailError | None = None
        self._lock = threading.Lock()
        self._told = 0
        self._board = TensorBoardFile(folder / TENSORBOARD)

    def _find_data(self, data: Source | None) -> tuple[Source, int]:
        """Return the data, and their first sample that counts."""
        run = self._blueprint.run
        data = load_validation(run) if data is None else data
        if data is not None:
            return by_name(data, self._trained_on.schema), 0
        total, trained = self._trained_on.num_samples, self._blueprint.all_samples
        if total is not None and total <= trained:
            raise TrainingError(
                "no data are left to validate on: the run trains on all of its own, and none were given",
                hint="give validation data (validation=...; those that were an object anew where a run goes on), or "
                f"train on fewer: data.samples = {max(1, trained * 9 // 10)}",
            )
        return self._trained_on, trained

    # -- while the run goes on -----------------------------------------------------------------------------------------

    def look(self, checkpoint_step: int) -> None:
        """Have a new checkpoint tried where one is due and none is being tried; raise what went wrong."""
        self.check()
        self._tell()
        if checkpoint_step <= self._seen_step or (self._thread is not None and self._thread.is_alive()):
            return
        for folder in reversed(checkpoints.all_in(self._folder)):
            with suppress(TrainingError, OSError):  # where it was dropped meanwhile, another one will do
                manifest = RunManifest.read(folder)
                if not self._is_due(manifest) or self._begin(folder, manifest):
                    return

    def _is_due(self, manifest: RunManifest) -> bool:
        """Say whether steps or epochs enough have passed since the last."""
        steps, epochs = self._settings.every_steps, self._settings.epochs
        if steps is not None and manifest.step // steps > self._seen_step // steps:
            return True
        samples = self._blueprint.samples
        done, before = manifest.position // samples, self._seen_position // samples
        return epochs is not None and done // epochs > before // epochs

    def _begin(self, folder: Path, manifest: RunManifest) -> bool:
        """Try a checkpoint in a thread; return whether it was still there."""
        tried = self._folder / TRIED
        shutil.rmtree(tried, ignore_errors=True)
        link_tree(folder, tried)
        if any(not (tried / name).is_file() for name in manifest.files):
            return False
        self._seen_step, self._seen_position = manifest.step, manifest.position
        if not self._is_beside:
            with torch.random.fork_rng():
                self._try(tried, manifest)
            self.check()
            self._tell()
            return True
        self._thread = threading.Thread(target=self._try, args=(tried, manifest), name="dovetail-validation")
        self._thread.start()
        return True

    def _try(self, tried: Path, manifest: RunManifest) -> None:
        """Look how good a checkpoint is."""
        try:
            model = restore_model(
                self._folder, model=self._model, source=self._trained_on, checkpoint=tried, trust=True
            )
            metrics = without_ranking(model, self._metrics)
            figures, _ = figures_of(
                model, self._data, first=self._first, num_samples=self._settings.samples, metrics=metrics
            )
            self._take(tried, manifest, figures)
        except DovetailError as problem:
            self._problem = problem
        except Exception as problem:  # whatever a user's model or data raise
            self._problem = TrainingError(
                f"the model could not be tried on the validation data: {type(problem).__name__}: {problem}",
                hint="look at these data: dovetail data inspect",
            )

    def _take(self, tried: Path, manifest: RunManifest, figures: dict[str, float]) -> None:
        """Note figures, and keep the checkpoint where it is the best."""
        metric = self._settings.metric
        if metric not in figures:
            raise TrainingError(
                f"validation.metric is `{metric}`, and there are {', '.join(figures)}", hint="choose one of them"
            )
        best = self.best
        gains = best is None or is_better(metric, figures[metric], best.figures[metric], self._settings.least_gain)
        found = Validated(step=manifest.step, samples=manifest.position, figures={**figures}, is_best=gains)
        if gains:
            beside = self._folder / f"{BEST}.old"
            shutil.rmtree(beside, ignore_errors=True)
            if (self._folder / BEST).exists():
                (self._folder / BEST).rename(beside)
            tried.rename(self._folder / BEST)
            shutil.rmtree(beside, ignore_errors=True)
        with (self._folder / VALIDATION).open("ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")
        numbers = {f"validation/{name}": value for name, value in figures.items() if math.isfinite(value)}
        self._board.write(numbers, manifest.position)
        with self._lock:
            self.history.append(found)

    def _tell(self) -> None:
        """Tell, in the caller's thread, of what was found."""
        with self._lock:
            news, self._told = self.history[self._told :], len(self.history)
        for found in news:
            self._on_validated(found)

    def check(self) -> None:
        """Raise what went wrong."""
        if self._problem is not None:
            raise self._problem

    @property
    def best(self) -> Validated | None:
        """The best so far."""
        return next((each for each in reversed(self.history) if each.is_best), None)

    def should_stop(self) -> bool:
        """Say whether it has not got better for too long."""
        patience = self._settings.patience
        if patience is None or len(self.history) <= patience:
            return False
        return not any(each.is_best for each in self.history[-patience:])

    def finish(self) -> None:
        """After the run: wait for what is being tried, and try the last checkpoint."""
        self._wait()
        self.check()
        folder = checkpoints.newest(self._folder)
        manifest = RunManifest.read(folder)
        if manifest.step > self._seen_step:
            self._begin(folder, manifest)
            self._wait()
        shutil.rmtree(self._folder / TRIED, ignore_errors=True)
        self.check()
        self._tell()

    def close(self) -> None:
        """Wait for what is being tried, and close the file of figures."""
        self._wait()
        self._board.close()

    def _wait(self) -> None:
        """Wait for what is being tried."""
        if self._thread is not None:
            self._thread.join()


def link_tree(source: Path, target: Path) -> None:
    """Have a folder's files under another name too, without copying them where the disk can."""

    def link(one: str, other: str) -> str:
        try:
            os.link(one, other)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copy2(one, other)
        return other

    shutil.copytree(source, target, copy_function=link)
