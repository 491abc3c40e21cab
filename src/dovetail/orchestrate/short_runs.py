"""A real run of some seconds: how fast it goes once it goes steadily, and what its processes take of the cores."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from dovetail.runtime.launch.start import start
from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.compilations import Compilations, watched_compilations
from dovetail.runtime.monitor.steady_pace import SteadyPace
from dovetail.spec.run import Run

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet
from dovetail.spec.run_sections import RunLog, RunSaving, RunValidation

HERE = "here"
"""What this process is called among those of a run."""
MANY_EPOCHS = 1_000_000
"""A short run ends by its time."""
COUNT_S = 0.25
"""How often processor time is looked at."""


class _EnoughError(Exception):
    """Ends a run that was seen long enough: without a last checkpoint, which nobody wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """What a short run came to, from its steady steps."""

    seconds_per_batch: float
    error: float
    """How much its windows went up and down, relative; where its pace did not hold, what it was still changing by."""
    steps: int
    used_s: Mapping[str, float]
    """Processor seconds for a batch, by process."""
    holds: bool = True
    """Whether it was seen to go steadily."""
    stages_s: tuple[float, ...] = ()
    """Seconds that each of several stages computed for a batch, over all of its workers."""

    @property
    def cores(self) -> float:
        """Return how many cores all processes kept busy."""
        return sum(self.used_s.values()) / self.seconds_per_batch


class _Watch:
    """Sees to a run from its first report on, and ends it."""

    def __init__(self, seconds: float, limit_s: float, most_s: float, compilations: Compilations) -> None:
        self.pace = SteadyPace()
        now_s = time.monotonic()
        self._seconds, self._until_s, self._end_s = seconds, now_s + limit_s, now_s + max(limit_s, most_s)
        self._compilations, self._compiled = compilations, compilations.look()
        self._held_since_s: float | None = None
        """Since when its pace holds, as far as the last report tells."""
        self._staged: list[tuple[float, Report]] = []
        self._counted: list[tuple[float, int, dict[str, float]]] = []
        """When, after how many samples, which process had used how many processor seconds."""

    def report(self, report: Report) -> None:
        """Take in how far the run is; end it once it was seen long enough."""
        now_s = time.monotonic()
        if (compiled := self._compilations.look()) != self._compiled:
            self._compiled = compiled
            self.pace.begin_anew()
        self.pace.report(report)
        self._held_since_s = self.pace.since_s if self.pace.holds else None
        if report.staged_samples:
            self._staged.append((now_s, report))
        if not self._counted or now_s - self._counted[-1][0] >= COUNT_S:
            self._counted.append((now_s, report.samples, processor_seconds()))
        self.should_stop()

    def should_stop(self) -> bool:
        """End the run when it was seen to go steadily for long enough, or its time is over.

        A run whose pace is not known, or does not hold yet, has until the last moment.
        """
        now_s, since_s = time.monotonic(), self._held_since_s
        is_seen = since_s is not None and (now_s - since_s >= self._seconds or now_s >= self._until_s)
        if is_seen or now_s >= self._end_s:
            raise _EnoughError
        return False

    def stages_s(self, batch: int) -> tuple[float, ...]:
        """Return what each stage computed for a batch since the warm-up; nothing where that is not known."""
        since_s = self.pace.since_s or -math.inf
        seen = [report for at_s, report in self._staged if at_s >= since_s]
        if len(seen) < 2 or seen[-1].staged_samples <= seen[0].staged_samples:
            return ()
        samples = seen[-1].staged_samples - seen[0].staged_samples
        pairs = zip(seen[-1].stages_s, seen[0].stages_s, strict=False)
        return tuple((now - then) * batch / samples for now, then in pairs)

    def used_s(self, batch: int, before: Mapping[str, float]) -> dict[str, float]:
        """Return the processor seconds for a batch of each process since the warm-up; `before` is of the beginning."""
        if not self._counted:
            return {}
        last_s, at, now = self._counted[-1]
        since_s = self.pace.since_s or -math.inf
        begun = [each for each in self._counted[:-1] if each[0] >= since_s and each[1] < at]
        _, samples, used = begun[0] if begun else (last_s, 0, dict(before))
        done = at - samples
        return {name: (each - used.get(name, 0.0)) * batch / done for name, each in now.items() if done > 0}


def short_run(
    run: Run, batch: int, *, seconds: float, limit_s: float, most_s: float = 0.0, fleet: Fleet | None = None
) -> ShortRun | None:
    """Train for so many seconds at a pace that holds, `limit_s` in all; None where that was too short for two steps.

    A run whose pace does not hold by then, such as one whose kernels compile, has up to `most_s`; the error says so
    where it still does not. With a `fleet`, workers are on its hosts, whose processor time is not seen.
    """
    whole = msgspec.structs.replace(
        run,
        training=msgspec.structs.replace(run.training, batch=batch, epochs=MANY_EPOCHS, plan=None),
        checkpoint=RunSaving(every_s=None),
        validation=RunValidation(),
        log=RunLog(),
    )
    before: dict[str, float] = processor_seconds()
    used: dict[str, float] = {}

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
    with watched_compilations() as compilations, place as folder:
        watch = _Watch(seconds, limit_s, most_s, compilations)
        with suppress(_EnoughError):
            start(whole, Path(folder) / "run", on_report=report, stop=stop, fleet=fleet)
    each_s = watch.pace.seconds_per_sample
    if each_s is None or not used:
        return None
    pace = watch.pace
    return ShortRun(seconds_per_batch=each_s * batch, error=pace.error, steps=pace.steps, used_s=used, holds=pace.holds)


def processor_seconds() -> dict[str, float]:
    """Return the processor time so far of this process and of all below it, by name."""
    used = {HERE: time.process_time()}
    for child in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            times = child.cpu_times()
            name = child.name()
            used[name] = used.get(name, 0.0) + times.user + times.system
    return used
