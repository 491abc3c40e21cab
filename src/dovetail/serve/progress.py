"""How far a job has come and how fast it goes: from the figures that its processes write, a line a second or so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dovetail.runtime.folder import METRICS, present_in
from dovetail.serve.submission import MOST

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


JUMP_S = 5.0
"""How much further a job's own clock may have gone than ours between two lines before it counts as set."""


def is_believable(line: ProgressLine) -> bool:
    """Say whether a line's numbers can be computed with."""
    numbers = (line.unix_s, line.samples, line.total_samples, line.loss)
    return all(number is None or (math.isfinite(number) and abs(number) <= MOST) for number in numbers)


@dataclass(slots=True)
class JobProgress:
    """What has been seen of a job so far. Moments are the daemon's own (`SteadyClock`), whatever a job's clock says."""

    folder: Path
    """The job's."""
    done: float = 0.0
    total: float | None = None
    loss: float | None = None
    step: int | None = None
    heard_s: float = 0.0
    """When it was last heard of."""
    speed: float | None = None
    """Of the last seconds."""
    points: list[tuple[float, float]] = field(default_factory=list)
    """Work done, and the loss there."""
    offset: int = 0
    """How much of the file was read."""
    _recent: list[tuple[float, ProgressLine]] = field(default_factory=list)
    """Lines and when they came."""

    @property
    def path(self) -> Path:
        """Return the file with the figures."""
        own = self.folder / PROGRESS
        return own if own.exists() else self.folder / RUN / METRICS

    def size(self) -> int:
        """Return how long the file is now; OSError: that cannot be told."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def look(self, now_s: float, day_ahead_s: float = 0.0) -> bool:
        """Read the lines that are new; return whether there were any; OSError: that cannot be told.

        Those that are there at the first look came when they say, as far as the time of day tells.
        """
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.offset:
                    self.offset = 0  # it was begun anew
                file.seek(self.offset)
                text = file.read(MOST_LINES * 200)
        except FileNotFoundError:
            return False
        is_first = self.offset == 0
        whole, newline, _ = text.rpartition(b"\n")
        self.offset += len(whole) + len(newline)
        found = False
        for each in whole.splitlines():
            try:
                line = msgspec.json.decode(each, type=ProgressLine)
            except msgspec.MsgspecError:
                continue  # a full disk leaves gaps
            if is_believable(line):
                self._add(line, min(now_s, line.unix_s - day_ahead_s) if is_first else now_s)
                found = True
        return found

    def _add(self, line: ProgressLine, came_s: float) -> None:
        self.done, self.heard_s = line.samples, max(came_s, self.heard_s)
        self.total = line.total_samples if line.total_samples is not None else self.total
        self.step = line.step if line.step is not None else self.step
        if self._recent:
            before_s, before = self._recent[-1]
            if line.samples < before.samples:  # it went back to a checkpoint
                self._recent.clear()
                self.points = [point for point in self.points if point[0] < line.samples]
            elif not 0.0 <= line.unix_s - before.unix_s <= max(0.0, came_s - before_s) + JUMP_S:
                self._recent.clear()  # somebody has set its clock
        self._recent = [*self._recent, (came_s, line)][-60:]
        if line.loss is not None:
            self.loss = line.loss
            if line.samples > (self.points[-1][0] if self.points else 0.0):
                self.points.append((line.samples, line.loss))
            if len(self.points) > MOST_POINTS:
                self.points = self.points[::2]
        self.speed = self.speed_since(came_s - 8.0)

    def speed_since(self, since_s: float, *, least_s: float = 1.0) -> float | None:
        """Return the speed over what came after a moment, where that is long enough to tell."""
        seen = [line for came_s, line in self._recent if came_s >= since_s]
        if len(seen) < 2 or seen[-1].unix_s - seen[0].unix_s < least_s:
            return None
        return (seen[-1].samples - seen[0].samples) / (seen[-1].unix_s - seen[0].unix_s)

    def present(self) -> tuple[int, float] | None:
        """Return how many workers a run has, and since when by the time of day; None where it has not said yet."""
        found = present_in(self.folder / RUN)
        return None if found is None else (len(found.workers), found.since_s)
