"""The figures of a run in one process: what a coordinator writes and tells of runs with servers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from dovetail.models.schedules import Schedule
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.coordinator.decisions import Counted
from dovetail.runtime.coordinator.metrics import EVERY_S, Metrics
from dovetail.runtime.folder import RunSummary, TableSummary
from dovetail.runtime.messages import Done, Report
from dovetail.runtime.worker.tasks.score_counts import EVERY_S as SCORES_EVERY_S
from dovetail.runtime.worker.tasks.score_counts import ScoreCounts

REPORT_S = 0.25
NAME = "worker"


class SingleProcessFigures:
    """Counts steps, writes a line a second, and says now and then how the run goes."""

    def __init__(self, folder: Path, blueprint: Blueprint, schedule: Schedule, *, step: int, position: int) -> None:
        """Begin where the newest checkpoint ends."""
        self._folder, self._blueprint, self._schedule = folder, blueprint, schedule
        self._metrics = Metrics(folder, timeline=False, metrics=blueprint.metrics)
        self._scores = ScoreCounts(blueprint.metrics)
        self._step, self._position = step, position
        self._kept_step = step
        self._scored_s = -math.inf
        self._begun_s = time.time()
        self._stepped_s = self._turned_s = self._told_s = time.monotonic()
        self._events: list[str] = []

    def add_scores(self, scores: Any, labels: Tensor) -> None:
        """Count a batch's scores now and then: to look at them is to wait for the device."""
        now_s = time.monotonic()
        if now_s - self._scored_s >= SCORES_EVERY_S:
            self._scored_s = now_s
            self._scores.add(scores, labels)

    def add_step(self, step: int, position: int, *, wait_s: float, losses: Sequence[tuple[int, float]]) -> None:
        """Take in a step that was begun, and the (samples, summed loss) of those whose losses have become known."""
        now_s = time.monotonic()
        busy_s, self._stepped_s = max(0.0, now_s - self._stepped_s - wait_s), now_s
        samples, self._step, self._position = position - self._position, step, position
        done = Done(
            name=NAME,
            generation=0,
            step=step,
            task=0,
            samples=samples,
            loss=0.0,
            compute_s=busy_s,
            fixed_s=0.0,
            wait_s=wait_s,
        )
        self._metrics.add_task(done, self._scores.take())
        self.add_losses(losses)
        if now_s - self._turned_s >= EVERY_S:
            self._turn()

    def add_losses(self, losses: Sequence[tuple[int, float]]) -> None:
        """Take in losses that have become known."""
        for samples, loss in losses:
            self._metrics.add_step(Counted(step=self._step, samples=samples, loss=loss))

    def kept(self, step: int) -> None:
        """Take in that a checkpoint was kept."""
        self._kept_step = step
        self._events.append(f"checkpoint of step {step:,} kept")

    def note(self, words: str) -> None:
        """Take in what is to be told with the next report."""
        self._events.append(words)

    def is_due(self) -> bool:
        """Say whether it is time for a report."""
        return time.monotonic() - self._told_s >= REPORT_S

    def report(self, state: Literal["running", "done"] = "running") -> Report:
        """Return how the run goes, with what has happened since it was last asked."""
        self._told_s = time.monotonic()
        events, self._events = tuple(self._events), []
        metrics, training = self._metrics, self._blueprint.run.training
        return Report(
            state=state,
            generation=0,
            step=self._step,
            epoch=min(self._position // self._blueprint.samples, training.epochs - 1),
            samples=self._position,
            total_samples=self._blueprint.samples * training.epochs,
            samples_per_s=metrics.samples_per_s,
            loss=metrics.loss,
            auc=metrics.auc,
            checkpoint_step=self._kept_step,
            workers=(metrics.worker_status(NAME, "working"),),
            servers=(),
            events=events,
            next_event=0,
            metrics=tuple(metrics.values.items()),
            learning_rate=self._learning_rate(),
        )

    def finish(self, checkpoint: Path, tables: tuple[TableSummary, ...]) -> None:
        """Write what the run came to; a full disk leaves no summary, and the model is none the worse."""
        self._turn()
        metrics = self._metrics
        summary = RunSummary(
            step=self._step,
            samples=self._position,
            seconds=round(time.time() - self._begun_s, 3),
            loss=metrics.loss,
            auc=metrics.auc,
            metrics=dict(metrics.values),
            workers=metrics.summary(),
            servers={},
            imbalance=1.0,
            checkpoint=checkpoint.name,
            tables=tables,
        )
        with suppress(OSError):
            summary.write(self._folder)

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()

    def _learning_rate(self) -> float:
        """Return the rate of dense parameters at this step."""
        return float(self._blueprint.optimizer.get("learning_rate", 0.0)) * self._schedule(self._step)

    def _turn(self) -> None:
        """Write a line of figures."""
        self._turned_s = time.monotonic()
        facts = {
            "time_s": round(time.time() - self._begun_s, 3),
            "unix_s": round(time.time(), 3),
            "generation": 0,
            "step": self._step,
            "epoch": self._position // self._blueprint.samples,
            "samples": self._position,
            "total_samples": self._blueprint.samples * self._blueprint.run.training.epochs,
            "learning_rate": round(self._learning_rate(), 12),
        }
        self._metrics.turn(self._turned_s, facts, {})
