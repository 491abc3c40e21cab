"""How far a job has come and how fast it goes: from the figures that its processes write, a line a second or so."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dovetail.runtime.folder import METRICS, present_in

RUN = "run"
PROGRESS = "progress.jsonl"
MOST_LINES = 100_000
MOST_POINTS = 400
"""Losses that are kept of a job, spread over all of it."""


class ProgressLine(msgspec.Struct, frozen=True):
    """A line of a run's `metrics.jsonl`, or of what a job of another kind writes to `$DOVETAIL_PROGRESS`."""

    unix_s: float
    samples: float
    total_samples: float | None = None
    loss: float | None = None
    step: int | None = None


@dataclass(slots=True)
class JobProgress:
    """What has been seen of a job so far."""

    folder: Path
    """The job's."""
    done: float = 0.0
    total: float | None = None
    loss: float | None = None
    step: int | None = None
    last_s: float = 0.0
    speed: float | None = None
    """Of the last seconds."""
    points: list[tuple[float, float]] = field(default_factory=list)
    """Work done, and the loss there."""
    _offset: int = 0
    _recent: list[ProgressLine] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Return the file with the figures."""
        own = self.folder / PROGRESS
        return own if own.exists() else self.folder / RUN / METRICS

    def look(self) -> bool:
        """Read the lines that are new; return whether there were any."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read(MOST_LINES * 200)
        except OSError:
            return False
        whole, newline, _ = text.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        found = False
        for line in whole.splitlines():
            try:
                self._add(msgspec.json.decode(line, type=ProgressLine))
                found = True
            except msgspec.MsgspecError:
                continue  # a full disk leaves gaps
        return found

    def _add(self, line: ProgressLine) -> None:
        self.done, self.last_s = line.samples, line.unix_s
        self.total = line.total_samples if line.total_samples is not None else self.total
        self.step = line.step if line.step is not None else self.step
        if self._recent and line.samples < self._recent[-1].samples:
            self._recent.clear()  # it went back to a checkpoint
            self.points = [point for point in self.points if point[0] < line.samples]
        self._recent = [*self._recent, line][-60:]
        if line.loss is not None:
            self.loss = line.loss
            if line.samples > (self.points[-1][0] if self.points else 0.0):
                self.points.append((line.samples, line.loss))
            if len(self.points) > MOST_POINTS:
                self.points = self.points[::2]
        self.speed = self.speed_since(line.unix_s - 8.0)

    def speed_since(self, since_s: float, *, least_s: float = 1.0) -> float | None:
        """Return the speed over what was seen after a moment, where that is long enough to tell."""
        seen = [line for line in self._recent if line.unix_s >= since_s]
        if len(seen) < 2 or seen[-1].unix_s - seen[0].unix_s < least_s:
            return None
        return (seen[-1].samples - seen[0].samples) / (seen[-1].unix_s - seen[0].unix_s)

    def present(self) -> tuple[int, float] | None:
        """Return how many workers a run has, and since when; None where it has not said yet."""
        found = present_in(self.folder / RUN)
        return None if found is None else (len(found.workers), found.since_s)

    @property
    def is_fresh(self) -> bool:
        """Whether it was heard of in the last seconds."""
        return time.time() - self.last_s < 10.0
