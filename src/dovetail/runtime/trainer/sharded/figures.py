"""The figures of a sharded run: every worker tells what it did with what it agrees on, and the first writes it all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from torch import Tensor

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.figures import EVERY_S, Counted
from dovetail.runtime.folder import PrivacySummary, TableSummary
from dovetail.runtime.messages import Done, Report
from dovetail.runtime.trainer.figures import TrainerFigures
from dovetail.runtime.trainer.sharded.worker_group import Did, WorkerGroup


class BusyTime:
    """How long a worker was busy from step to step."""

    def __init__(self) -> None:
        self._stepped_s = time.monotonic()

    def did(self, wait_s: float, losses: Sequence[tuple[int, float]]) -> Did:
        """Return what was done since the step before, of which so much was waiting."""
        now_s = time.monotonic()
        busy_s, self._stepped_s = max(0.0, now_s - self._stepped_s - wait_s), now_s
        samples, loss = sum(samples for samples, _ in losses), sum(loss for _, loss in losses)
        return Did(samples=samples, busy_s=busy_s, wait_s=wait_s, loss_samples=samples, loss=loss)


class FirstWorkerFigures(TrainerFigures):
    """Writes and tells what all workers did."""

    def __init__(
        self, folder: Path, blueprint: Blueprint, *, step: int, position: int, group: WorkerGroup, names: Sequence[str]
    ) -> None:
        """Begin where the newest checkpoint ends."""
        super().__init__(folder, blueprint, step=step, position=position)
        self._group, self._names, self._clock = group, names, BusyTime()

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
        """Take in a step that was begun, and what all workers have told since the one before."""
        self._step, self._position = step, position
        self._group.tell(self._clock.did(wait_s, losses))
        counts = self._scores.take()
        for name, did in zip(self._names, self._group.take(), strict=True):
            done = Done(
                name=name,
                generation=0,
                step=step,
                task=0,
                samples=int(did.samples),
                loss=0.0,
                compute_s=did.busy_s,
                fixed_s=0.0,
                wait_s=did.wait_s,
                data_s=data_s if name == self._names[0] else 0.0,
                read_s=read_s if name == self._names[0] else 0.0,
            )
            self._figures.add_task(done, counts)
            self._figures.add_step(Counted(step=step, samples=int(did.loss_samples), loss=did.loss))
            counts = ()
        if time.monotonic() - self._turned_s >= EVERY_S:
            self._turn()

    def add_losses(self, losses: Sequence[tuple[int, float]]) -> None:
        """Tell losses that have become known."""
        self._group.tell(BusyTime().did(0.0, losses))

    def _flush(self) -> None:
        """Hand nothing on: it was, step by step."""

    def report(self, state: Literal["running", "done"] = "running") -> Report:
        """Return how the run goes, with what has happened since it was last asked."""
        workers = tuple(self._figures.worker_status(name, "working") for name in self._names)
        return msgspec.structs.replace(super().report(state), workers=workers)

    def finish(self, checkpoint: Path, tables: tuple[TableSummary, ...], privacy: PrivacySummary | None = None) -> None:
        """Write what the run came to, with the rows of all workers."""
        self._group.settle()
        self.add_step(self._step, self._position, wait_s=0.0, data_s=0.0, losses=())
        super().finish(checkpoint, _all_rows(self._group, tables), privacy)


class OtherWorkerFigures:
    """Tells what a worker did, and writes nothing."""

    def __init__(self, *, step: int, position: int, group: WorkerGroup) -> None:
        """Begin where the newest checkpoint ends."""
        self._step, self._position, self._kept_step = step, position, step
        self._group, self._clock = group, BusyTime()

    def add_scores(self, scores: Any, labels: Tensor) -> None:
        """Count nothing: the first worker's samples are as good as any."""

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
        """Tell a step that was begun."""
        self._step, self._position = step, position
        self._group.tell(self._clock.did(wait_s, losses))
        self._group.take()

    def add_losses(self, losses: Sequence[tuple[int, float]]) -> None:
        """Tell losses that have become known."""
        self._group.tell(BusyTime().did(0.0, losses))

    def kept(self, step: int) -> None:
        """Take in that a checkpoint was kept."""
        self._kept_step = step

    def paused(self) -> None:
        """Count it as others do."""

    def note(self, words: str) -> None:
        """Leave it to the first worker, which finds the same."""

    def is_due(self) -> bool:
        """Say that nobody asks."""
        return False

    def report(self, state: Literal["running", "done"] = "running") -> Report:
        """Return where the run stands."""
        return Report(
            state=state,
            generation=0,
            step=self._step,
            epoch=0,
            samples=self._position,
            total_samples=0,
            samples_per_s=0.0,
            loss=0.0,
            auc=0.0,
            checkpoint_step=self._kept_step,
            workers=(),
            servers=(),
            events=(),
            next_event=0,
        )

    def finish(self, checkpoint: Path, tables: tuple[TableSummary, ...], privacy: PrivacySummary | None = None) -> None:
        """Tell where the rows of this worker are."""
        self._group.settle()
        _all_rows(self._group, tables)

    def close(self) -> None:
        """Close nothing."""


def _all_rows(group: WorkerGroup, mine: tuple[TableSummary, ...]) -> tuple[TableSummary, ...]:
    """Return where the rows of each table are, over all workers."""
    payloads = group.gather(msgspec.json.encode(mine))
    found = [msgspec.json.decode(each, type=tuple[TableSummary, ...]) for each in payloads]
    return tuple(_sum_of(of_table) for of_table in zip(*found, strict=True))


def _sum_of(parts: Sequence[TableSummary]) -> TableSummary:
    names = ("device_rows", "host_rows", "disk_rows", "lifted", "lowered")
    return TableSummary(
        **{name: sum(getattr(part, name) for part in parts) for name in names},
        hit_ratio=round(sum(part.hit_ratio for part in parts) / len(parts), 4),
    )
