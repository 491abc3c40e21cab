"""How fast a run goes once it goes steadily: what came before, such as starting and compiling, is left out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.spec.run import Run

WARM_UP_STEPS = 3
"""Of a start: memory is filled for the first time, lines are opened, kernels compile."""
WARM_UP_PART = 0.25
"""Of the time after those: rows are new at first, and threads that read find out how many they should be."""
WINDOW_S, WINDOW_STEPS, MOST_WINDOWS = 0.2, 4, 9
"""Windows are so long at least, and there are so many at most: reports come between steps, whose number is whole."""


class SteadyPace(Callback):
    """Takes in the reports of a run; `seconds_per_sample` is that of its middle windows, without the warm-up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait for the first report."""
        self._clock = clock
        self._points: list[tuple[float, int, int]] = []

    def begin(self, folder: Path, run: Run) -> None:
        """Begin anew: a run that moved to another plan is another run."""
        self._points.clear()

    def report(self, report: Report) -> None:
        """Take in how far the run is."""
        if report.state not in ("running", "saving", "done"):
            return
        point = (self._clock(), report.samples, report.step)
        if self._points and report.samples < self._points[-1][1]:
            self._points.clear()  # it went back to a checkpoint
        if not self._points or report.samples > self._points[-1][1]:
            self._points.append(point)

    @property
    def is_warm(self) -> bool:
        """Say whether the first steps are over."""
        return len(self._warm()) > 0

    @property
    def steps(self) -> int:
        """Return how many steps were seen after the first ones."""
        warm = self._warm()
        return warm[-1][2] - warm[0][2] if warm else 0

    def _warm(self) -> list[tuple[float, int, int]]:
        """Return the points after the first steps."""
        if not self._points:
            return []
        first = self._points[0][2] + WARM_UP_STEPS
        return [point for point in self._points if point[2] >= first]

    def _windows(self) -> list[float]:
        """Return the seconds a sample of windows alike in time."""
        points = self._warm()
        if len(points) < 2:  # steps so long that few were done: all but the first is better than nothing
            points = self._points[1:]
        if len(points) < 2:
            return []
        span_s = points[-1][0] - points[0][0]
        kept = [point for point in points if point[0] >= points[0][0] + WARM_UP_PART * span_s]
        points = kept if len(kept) > 2 else points
        length_s = max(WINDOW_S, (points[-1][0] - points[0][0]) / MOST_WINDOWS)
        found, begin = [], points[0]
        for point in points[1:]:
            if point[0] - begin[0] >= length_s * (1 - 1e-9) and point[2] - begin[2] >= WINDOW_STEPS:
                found.append((point[0] - begin[0]) / (point[1] - begin[1]))
                begin = point
        return found if len(found) > 2 else [(points[-1][0] - points[0][0]) / (points[-1][1] - points[0][1])]

    @property
    def seconds_per_sample(self) -> float | None:
        """Return the middle of the windows; None where too little was seen."""
        windows = self._windows()
        return statistics.median(windows) if windows else None

    @property
    def samples_per_s(self) -> float | None:
        """Return samples a second; None where too little was seen."""
        seconds = self.seconds_per_sample
        return 1.0 / seconds if seconds else None

    @property
    def spread(self) -> float:
        """Return the median deviation of the windows from their middle, relative to it."""
        windows = self._windows()
        if len(windows) < 2:
            return 0.0
        middle = statistics.median(windows)
        return statistics.median(abs(each - middle) for each in windows) / middle
