"""The figures of a run in one process: what a coordinator writes and tells of runs with servers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.figures import EVERY_S, Counted, RunFigures, Standing
from dovetail.runtime.folder import PrivacySummary, TableSummary
from dovetail.runtime.messages import Done, Report, Span
from dovetail.runtime.worker.tasks.score_counts import EVERY_S as SCORES_EVERY_S
from dovetail.runtime.worker.tasks.score_counts import ScoreCounts

REPORT_S = 0.25
FLUSH_S = 0.1
"""How often what steps came to is handed on: each alone would cost more than small models do."""
NAME = "worker"


class TrainerFigures:
    """Counts steps, writes a line a second, and says now and then how the run goes."""

    def __init__(self, folder: Path, blueprint: Blueprint, *, step: int, position: int) -> None:
        """Begin where the newest checkpoint ends."""
        self._figures = RunFigures(folder, blueprint, timeline=blueprint.timeline)
        self._keeps_spans = blueprint.timeline
        self._shows_scores = blueprint.private is None
        """What training samples came to would tell of them."""
        self._spans: list[Span] = []
        self._losses: list[tuple[int, float]] = []
        self._busy_s = self._wait_s = self._data_s = self._read_s = 0.0
        self._counted = position
        """Samples that were handed on."""
        self._scores = ScoreCounts(blueprint.metrics)
        self._step, self._position = step, position
        self._kept_step = step
        self._scored_s = -math.inf
        self._stepped_s = self._turned_s = self._told_s = self._flushed_s = time.monotonic()
        self._events: list[str] = []

    def add_scores(self, scores: Any, labels: Tensor) -> None:
        """Count a batch's scores now and then: to look at them is to wait for the device."""
        now_s = time.monotonic()
        if scores is not None and self._shows_scores and now_s - self._scored_s >= SCORES_EVERY_S:
            self._scored_s = now_s
            self._scores.add(scores, labels)

    def add_step(
        self,
        step: int,
        position: int,
        *,
        wait_s: float,
        data_s: float,
        losses: Sequence[tuple[int, float]],
        read_s: float = 0.0,
    ) -> None:
        """Take in a step that was begun, and the (samples, summed loss) of those whose losses have become known."""
        now_s = time.monotonic()
        busy_s, self._stepped_s = max(0.0, now_s - self._stepped_s - wait_s), now_s
        self._step, self._position = step, position
        self._busy_s += busy_s
        self._wait_s += wait_s
        self._data_s += data_s
        self._read_s += read_s
        self._losses.extend(losses)
        if self._keeps_spans:
            end_s = time.time()
            begin_s = end_s - busy_s - wait_s
            self._spans += (
                Span("wait", begin_s, begin_s + wait_s, step),
                Span("compute", begin_s + wait_s, end_s, step),
            )
        if now_s - self._flushed_s >= FLUSH_S:
            self._flush()
        if now_s - self._turned_s >= EVERY_S:
            self._turn()

    def paused(self) -> None:
        """Count what was done since the last step as neither work nor waiting: a checkpoint, a trial of the model."""
        self._stepped_s = time.monotonic()

    def _flush(self) -> None:
        """Hand on what the steps since the last time came to."""
        self._flushed_s = time.monotonic()
        samples, self._counted = self._position - self._counted, self._position
        done = Done(
            name=NAME,
            generation=0,
            step=self._step,
            task=0,
            samples=samples,
            loss=0.0,
            compute_s=self._busy_s,
            fixed_s=0.0,
            wait_s=self._wait_s,
            data_s=self._data_s,
            read_s=self._read_s,
            spans=tuple(self._spans),
        )
        self._busy_s = self._wait_s = self._data_s = self._read_s = 0.0
        self._spans = []
        self._figures.add_task(done, self._scores.take())
        self.add_losses(self._losses)
        self._losses = []

    def add_losses(self, losses: Sequence[tuple[int, float]]) -> None:
        """Take in losses that have become known."""
        for samples, loss in losses:
            self._figures.add_step(Counted(step=self._step, samples=samples, loss=loss))

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
        self._flush()
        self._told_s = time.monotonic()
        events, self._events = tuple(self._events), []
        return self._figures.report(
            state,
            self._standing(),
            checkpoint_step=self._kept_step,
            workers=[self._figures.worker_status(NAME, "working")],
            events=events,
            servers=(),
            next_event=0,
        )

    def finish(self, checkpoint: Path, tables: tuple[TableSummary, ...], privacy: PrivacySummary | None = None) -> None:
        """Write what the run came to."""
        self._turn()
        if privacy is not None:
            self.note(privacy.words)
        self._figures.write_summary(self._standing(), checkpoint, tables=tables, privacy=privacy)

    def close(self) -> None:
        """Close the files."""
        self._figures.close()

    def _standing(self) -> Standing:
        """Return where the run stands."""
        return Standing(step=self._step, position=self._position, samples=self._position)

    def _turn(self) -> None:
        """Write a line of figures."""
        self._flush()
        self._turned_s = time.monotonic()
        self._figures.turn(self._turned_s, self._standing())
