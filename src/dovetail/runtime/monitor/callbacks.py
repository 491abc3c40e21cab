"""What a program is told of its run while it goes on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.runtime.finished.result import Validated
from dovetail.runtime.messages import Report
from dovetail.spec.run import Run

if TYPE_CHECKING:
    from dovetail.runtime.finished.result import TrainingResult


class Callback:
    """Write the methods that you need; all are called in the program's own thread. `stop = True` ends the run."""

    stop: bool = False
    """Set it to have the run keep its state and end."""

    def begin(self, folder: Path, run: Run) -> None:
        """Take in that a run begins."""

    def report(self, report: Report) -> None:
        """Take in how the run goes, a few times a second."""

    def validated(self, found: Validated) -> None:
        """Take in how good a checkpoint is on the validation data."""

    def end(self, result: TrainingResult) -> None:
        """Take in what the run came to."""

    def close(self) -> None:
        """Give back what was taken; called however the run ended."""


class Callbacks(Callback):
    """Several as one."""

    def __init__(self, each: Iterable[Callback]) -> None:
        """Keep them in their order."""
        self._each = list(each)

    def asked_to_stop(self) -> bool:
        """Say whether any of them wants the run to end."""
        return any(each.stop for each in self._each)

    def begin(self, folder: Path, run: Run) -> None:
        """Tell all."""
        for each in self._each:
            each.begin(folder, run)

    def report(self, report: Report) -> None:
        """Tell all."""
        for each in self._each:
            each.report(report)

    def validated(self, found: Validated) -> None:
        """Tell all."""
        for each in self._each:
            each.validated(found)

    def end(self, result: TrainingResult) -> None:
        """Tell all."""
        for each in self._each:
            each.end(result)

    def close(self) -> None:
        """Close all."""
        for each in self._each:
            each.close()
