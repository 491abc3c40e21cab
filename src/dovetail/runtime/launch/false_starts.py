"""Processes that end before anybody hears of them: a run must not start them over and over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import log_of
from dovetail.runtime.launch.child import Child
from dovetail.runtime.launch.work_out import COORDINATOR
from dovetail.runtime.messages import Report

MOST = 4
"""How often in a row a process may end before it was heard of."""


class FalseStarts:
    """Who was heard of, out of those that were started."""

    def __init__(self, folder: Path, children: Mapping[str, Child]) -> None:
        """Watch the children of a run, which come and go."""
        self._folder, self._children = folder, children
        self._seen: set[str] = set()
        self._answered_starts = 1

    def check(self, report: Report | None) -> None:
        """Learn from a report, where there is one; give up on who never comes to life."""
        starts = self._children[COORDINATOR].starts
        if report is not None:
            self._answered_starts = starts
            self._seen.update(worker.name for worker in report.workers if worker.state == "working")
            self._seen.update(report.stage_workers)
        elif starts - self._answered_starts >= MOST:
            raise TrainingError(
                f"the coordinator ended {starts - self._answered_starts} times without a word: {self._last_error()}",
                hint=f"its log is {log_of(self._folder, COORDINATOR)}",
            )
        for name, child in self._children.items():
            if not child.is_role and child.starts > MOST and name not in self._seen:
                raise TrainingError(
                    f"{name} ended {child.starts - 1} times before it could begin",
                    hint=f"its log is {log_of(self._folder, name)}; what came before the log is above",
                )

    def _last_error(self) -> str:
        """Return the last error in the coordinator's log."""
        path = log_of(self._folder, COORDINATOR)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return next(
            (line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "no error"
        )
