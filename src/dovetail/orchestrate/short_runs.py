"""A real run of some seconds: how fast it goes once it goes steadily, and what its processes take of the cores."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from dovetail.runtime.launch.start import start
from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.steady_pace import WARM_UP_PART, SteadyPace
from dovetail.spec.run import Run
from dovetail.spec.run_sections import RunLog, RunSaving, RunValidation

HERE = "here"
"""What this process is called among those of a run."""
MANY_EPOCHS = 1_000_000
"""A short run ends by its time."""


class _EnoughError(Exception):
    """Ends a run that was seen long enough: without a last checkpoint, which nobody wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """What a short run came to, from its steady steps."""

    seconds_per_batch: float
    error: float
    """The median deviation of its windows, relative."""
    steps: int
    used_s: Mapping[str, float]
    """Processor seconds for a batch, by process."""

    @property
    def cores(self) -> float:
        """Return how many cores all processes kept busy."""
        return sum(self.used_s.values()) / self.seconds_per_batch


class _Watch:
    """Sees to a run from its first report on, and ends it."""

    def __init__(self, seconds: float, limit_s: float, most_s: float) -> None:
        self.pace = SteadyPace()
        now_s = time.monotonic()
        self._seconds, self._until_s, self._end_s = seconds, now_s + limit_s, now_s + max(limit_s, most_s)
        self._warm_s: float | None = None
        self._counted: tuple[int, dict[str, float]] | None = None
        """Samples and processor seconds from which on both are counted: after the first step, or the first ones."""
        self._is_counted = False
        """Whether that is when the first ones are over, in which kernels compile."""
        self._last: Report | None = None

    def report(self, report: Report) -> None:
        """Take in how far the run is; end it once it was seen long enough."""
        self.pace.report(report)
        self._last = report
        if self._warm_s is None and self.pace.is_warm:
            self._warm_s = time.monotonic()
        is_over = self._warm_s is not None and time.monotonic() - self._warm_s >= WARM_UP_PART * self._seconds
        if (is_over and not self._is_counted) or (self._counted is None and report.samples > 0):
            self._counted, self._is_counted = (report.samples, processor_seconds()), is_over
        self.should_stop()

    def should_stop(self) -> bool:
        """End the run when its time is over."""
        now_s = time.monotonic()
        is_late = now_s >= self._end_s or (now_s >= self._until_s and self.pace.seconds_per_sample is not None)
        if is_late or (self._warm_s is not None and now_s - self._warm_s >= self._seconds):
            raise _EnoughError
        return False

    def used_s(self, batch: int, before: Mapping[str, float]) -> dict[str, float]:
        """Return the processor seconds for a batch of each process; `before` counts where too few steps were done."""
        now, at = processor_seconds(), self._last.samples if self._last is not None else 0
        samples, used = self._counted or (0, dict(before))
        if samples == at:
            samples, used = 0, dict(before)
        done = at - samples
        return {name: (each - used.get(name, 0.0)) * batch / done for name, each in now.items() if done > 0}


def short_run(run: Run, batch: int, *, seconds: float, limit_s: float, most_s: float = 0.0) -> ShortRun | None:
    """Train for so many steady seconds, `limit_s` in all; None where that was too short for two steps.

    A run that has not come to them by then, such as one whose kernels compile, has up to `most_s`.
    """
    whole = msgspec.structs.replace(
        run,
        training=msgspec.structs.replace(run.training, batch=batch, epochs=MANY_EPOCHS, plan=None),
        checkpoint=RunSaving(every_s=None),
        validation=RunValidation(),
        log=RunLog(),
    )
    watch, before, used = _Watch(seconds, limit_s, most_s), processor_seconds(), {}

    def report(told: Report) -> None:
        try:
            watch.report(told)
        except _EnoughError:
            used.update(watch.used_s(batch, before))  # while its processes are there
            raise

    def stop() -> bool:
        try:
            return watch.should_stop()
        except _EnoughError:
            used.update(watch.used_s(batch, before))
            raise

    place = tempfile.TemporaryDirectory(prefix="dovetail-short-", ignore_cleanup_errors=True)
    with place as folder, suppress(_EnoughError):
        start(whole, Path(folder) / "run", on_report=report, stop=stop)
    each_s = watch.pace.seconds_per_sample
    if each_s is None or not used:
        return None
    return ShortRun(seconds_per_batch=each_s * batch, error=watch.pace.spread, steps=watch.pace.steps, used_s=used)


def processor_seconds() -> dict[str, float]:
    """Return the processor time so far of this process and of all below it, by name."""
    used = {HERE: time.process_time()}
    for child in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            times = child.cpu_times()
            name = child.name()
            used[name] = used.get(name, 0.0) + times.user + times.system
    return used
