"""How fast a run goes once it goes steadily: what came before, such as starting and compiling, is left out.

What was seen is cut into windows alike in time. The warm-up is over at the earliest point from which on the first half
of the windows and the second agree: their medians differ by no more than their noise. A kernel that compiles begins a
warm-up anew. Of the windows since then

    pace = the median                       one stall at most stands apart: others ran, one kernel compiled
    pace = seconds / samples                slow windows come again and again: they are part of the run

where the second is taken over whole rounds, from the end of the first slow stretch to the end of the last, if those are
most of what was seen.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.spec.run import Run

WARM_UP_STEPS = 3
"""Of a start: memory is filled for the first time, lines are opened, kernels compile."""
WARM_UP_PARTS = (0.0, 0.125, 0.25, 0.375, 0.5)
"""Of the time after those that may be warm-up too: rows are new at first, and threads that read find their number."""
WINDOW_S, WINDOW_STEPS, MOST_WINDOWS = 0.2, 4, 15
"""Windows are so long at least, and there are so many at most: reports come between steps, whose number is whole."""
LONG_STEPS = 5
"""Windows that are so much longer may have fewer steps."""
LEAST_WINDOWS = 6
"""Of which one can say whether halves agree."""
ALIKE = 0.05
"""Paces that differ by less are the same."""
APART = 0.25
"""Windows that differ by more from the middle stand apart."""
ONE_STALL = 1 / 3
"""Of the windows that one stall may take up."""
UNKNOWN = 1.0
"""The error of a pace of which nothing is known but one figure."""

Point = tuple[float, int, int]
"""When, after how many samples, and how many steps."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run."""

    seconds: float
    samples: int

    @property
    def pace(self) -> float:
        """Return the seconds a sample."""
        return self.seconds / self.samples


class SteadyPace(Callback):
    """Takes in the reports of a run; `seconds_per_sample` is its pace without the warm-up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait for the first report."""
        self._clock = clock
        self._points: list[Point] = []

    def begin(self, folder: Path, run: Run) -> None:
        """Begin anew: a run that moved to another plan is another run."""
        self._points.clear()

    def begin_anew(self) -> None:
        """Take in that something was compiled: what was seen before says nothing of what comes."""
        del self._points[:-1]

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
        return len(self._after_first_steps()) > 0

    @property
    def steps(self) -> int:
        """Return how many steps were seen after the first ones."""
        warm = self._after_first_steps()
        return warm[-1][2] - warm[0][2] if warm else 0

    @property
    def holds(self) -> bool:
        """Say whether the run was seen to go at one pace since some time."""
        return self._steady()[1]

    @property
    def since_s(self) -> float | None:
        """Return when, on the clock, the warm-up was over; None where too little was seen."""
        points = self._steady()[0]
        return points[0][0] if points else None

    @property
    def seconds_per_sample(self) -> float | None:
        """Return the pace since then; None where too little was seen."""
        windows = _windows(self._steady()[0])
        return _pace(windows) if windows else None

    @property
    def samples_per_s(self) -> float | None:
        """Return samples a second; None where too little was seen."""
        seconds = self.seconds_per_sample
        return 1.0 / seconds if seconds else None

    @property
    def spread(self) -> float:
        """Return how much the windows went up and down, relative: their median deviation from the pace."""
        windows = _windows(self._steady()[0])
        if len(windows) < 2:
            return 0.0
        pace = _pace(windows)
        spread = statistics.median(abs(each.pace - pace) for each in windows) / pace
        return spread if len(_stretches(windows)) < 2 else max(spread, _between_halves(windows))

    @property
    def error(self) -> float:
        """Return the relative error of the pace: its spread, and where it does not hold, what it was still changing."""
        points, holds = self._steady()
        windows = _windows(points)
        if holds or len(windows) >= LEAST_WINDOWS:
            return self.spread if holds else max(self.spread, _between_halves(windows))
        return UNKNOWN

    def _after_first_steps(self) -> list[Point]:
        """Return the points after the first steps."""
        if not self._points:
            return []
        first = self._points[0][2] + WARM_UP_STEPS
        return [point for point in self._points if point[2] >= first]

    def _steady(self) -> tuple[list[Point], bool]:
        """Return the points since the warm-up, and whether halves of them agree; else those of the last part."""
        points = self._after_first_steps()
        if len(points) < 2:  # steps so long that few were done: all but the first is better than nothing
            points = self._points[1:]
        if len(points) < 2:
            return [], False
        begun_s, span_s = points[0][0], points[-1][0] - points[0][0]
        kept = points
        for part in WARM_UP_PARTS:
            later = [point for point in points if point[0] >= begun_s + part * span_s]
            if len(later) < 3:
                break
            kept = later
            if _agree(_windows(kept)):
                return kept, True
        return kept, False


def _windows(points: Sequence[Point]) -> list[Window]:
    """Return windows alike in time; one, where there is too little for three."""
    if len(points) < 2:
        return []
    length_s = max(WINDOW_S, (points[-1][0] - points[0][0]) / MOST_WINDOWS)
    found, begin = [], points[0]
    for point in points[1:]:
        seconds, steps = point[0] - begin[0], point[2] - begin[2]
        is_long = seconds >= length_s * (1 - 1e-9)
        if is_long and (steps >= WINDOW_STEPS or seconds >= LONG_STEPS * WINDOW_S):
            found.append(Window(seconds, point[1] - begin[1]))
            begin = point
    return found if len(found) > 2 else [Window(points[-1][0] - points[0][0], points[-1][1] - points[0][1])]


def _agree(windows: Sequence[Window]) -> bool:
    """Say whether the first half goes at the pace of the second, as far as the noise lets one see."""
    if len(windows) < LEAST_WINDOWS:
        return False
    halves = [windows[: len(windows) // 2], windows[len(windows) // 2 :]]
    middles = [statistics.median(each.pace for each in half) for half in halves]
    # The standard error of a median, from median deviations: a few stalls do not hide a change.
    errors = [
        1.86 * statistics.median(abs(each.pace - middle) for each in half) / math.sqrt(len(half))
        for half, middle in zip(halves, middles, strict=True)
    ]
    return abs(middles[0] - middles[1]) <= max(ALIKE * min(middles), 2 * math.hypot(*errors))


def _stretches(windows: Sequence[Window]) -> list[tuple[int, int]]:
    """Return the first and last position of all stretches of windows that stand apart from the middle one."""
    middle = statistics.median(each.pace for each in windows)
    found: list[tuple[int, int]] = []
    for position, window in enumerate(windows):
        if abs(window.pace - middle) <= APART * middle:
            continue
        if found and found[-1][1] == position - 1:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found


def _pace(windows: Sequence[Window]) -> float:
    """Return the seconds a sample: of the middle window, or of all where some stand apart again and again."""
    apart = _stretches(windows)
    if not apart or (len(apart) == 1 and apart[0][1] - apart[0][0] + 1 <= max(1.0, ONE_STALL * len(windows))):
        return statistics.median(each.pace for each in windows)
    rounds = windows[apart[0][1] + 1 : apart[-1][1] + 1]
    rounds = rounds if 2 * len(rounds) >= len(windows) else windows
    return sum(each.seconds for each in rounds) / sum(each.samples for each in rounds)


def _between_halves(windows: Sequence[Window]) -> float:
    """Return by how much the halves differ from their mean, relative."""
    halves = [windows[: len(windows) // 2], windows[len(windows) // 2 :]]
    one, other = (sum(each.seconds for each in half) / sum(each.samples for each in half) for half in halves)
    return abs(one - other) / (one + other)
