"""What the stages of a run took over the last steps, read from its reports."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.runtime.messages import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindow:
    """Some steps of a run."""

    steps: int
    samples: int
    """That the stages computed."""
    stages_s: tuple[float, ...]
    """How long each computed for them, over all of its workers."""
    samples_per_s: float
    """Of the whole run."""


WARM_UP_STEPS = 3
"""Of a start that are left out: lines are opened, and memory is filled for the first time."""


class StageWatch:
    """Cuts a run into windows of at least so many steps and seconds, without its first steps."""

    def __init__(self, *, steps: int, seconds: float) -> None:
        """Wait for the run to start."""
        self._steps, self._seconds = steps, seconds
        self._first: Report | None = None
        """Of this start of counting."""
        self._begun: tuple[float, Report] | None = None

    def add(self, report: Report, now_s: float) -> StageWindow | None:
        """Take in a report; return a window that is whole with it."""
        if report.state != "running" or not report.staged_samples:
            return None
        if self._first is None or self._is_new(report, self._first if self._begun is None else self._begun[1]):
            self._first, self._begun = report, None
        if self._begun is None:
            if report.step >= self._first.step + WARM_UP_STEPS:
                self._begun = (now_s, report)
            return None
        begun_s, first = self._begun
        steps, seconds = report.step - first.step, now_s - begun_s
        if steps < self._steps or seconds < self._seconds or report.staged_samples == first.staged_samples:
            return None
        self._begun = (now_s, report)
        return StageWindow(
            steps=steps,
            samples=report.staged_samples - first.staged_samples,
            stages_s=tuple(now - then for now, then in zip(report.stages_s, first.stages_s, strict=True)),
            samples_per_s=(report.samples - first.samples) / seconds,
        )

    def _is_new(self, report: Report, first: Report) -> bool:
        """Say whether counting began anew: the coordinator came back, or the run went back to a checkpoint."""
        return (
            report.staged_samples < first.staged_samples
            or report.step < first.step
            or report.generation != first.generation
            or len(report.stages_s) != len(first.stages_s)
        )
