"""Watching a run until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import log_of
from dovetail.runtime.launch.guard import check_guarded
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.prepare import COORDINATOR
from dovetail.runtime.messages import Report

ASK_AGAIN_S = 10.0
"""A coordinator that came back has forgotten that it was asked to stop."""
MOST_FALSE_STARTS = 4
"""How often in a row a process may end before it was heard of."""


def follow(
    run: LocalRun, on_report: Callable[[Report], None] | None = None, *, stop: Callable[[], bool] = lambda: False
) -> Report:
    """Wait until a run is over, handing on its reports; once `stop` says so, have it keep its state and end."""
    asked_s = -ASK_AGAIN_S
    seen: set[str] = set()
    answered_starts = 1
    while True:
        report = run.look()
        check_guarded()
        starts = run.children[COORDINATOR].starts
        if starts - answered_starts >= MOST_FALSE_STARTS:
            raise TrainingError(
                f"the coordinator ended {starts - answered_starts} times without a word: {_last_error(run)}",
                hint=f"its log is {log_of(run.folder, COORDINATOR)}",
            )
        if report is not None:
            answered_starts = starts
            seen.update(worker.name for worker in report.workers if worker.state == "working")
            if on_report is not None:
                on_report(report)
            if report.state == "done":
                return report
            if report.state == "failed":
                raise TrainingError(report.error, hint=report.hint)
        _check_starts(run, seen)
        if stop() and time.monotonic() - asked_s >= ASK_AGAIN_S:
            asked_s = time.monotonic()
            run.ask_to_stop()


def _last_error(run: LocalRun) -> str:
    """Return the last error in the coordinator's log."""
    path = log_of(run.folder, COORDINATOR)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "no error")


def _check_starts(run: LocalRun, seen: set[str]) -> None:
    """Give up on a worker that never comes to life: it would be started over and over."""
    for name, _ in run.blueprint.run.each_worker():
        child = run.children.get(name)
        if child is not None and child.starts > MOST_FALSE_STARTS and name not in seen:
            raise TrainingError(
                f"{name} ended {child.starts - 1} times before it could begin",
                hint=f"its log is {log_of(run.folder, name)}; what came before the log is above",
            )
