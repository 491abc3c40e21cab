"""A run whose processes are children of this one: started together, watched until it is over, ended in any case."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import nn

from dovetail.data.source import Source
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.clocks import AwakeClock
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.child import Child, Starter
from dovetail.runtime.launch.sandbox import Quotas, Sandbox
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.lock import RunLock
from dovetail.runtime.prepare.main_guard import check_guarded
from dovetail.runtime.private_folder import remove_private_folder

LOOK_S = 0.1
"""How often a watched run is asked how it goes, and its processes are seen to."""
STOP_AGAIN_S = 10.0
"""When the wish to stop is told again: a process that came back has not heard of it."""


class WatchedRun(ABC):
    """What `prepare` made, with its processes for as long as the block lasts."""

    _ends_in_s = 0.0
    """How long its processes may take to end once the run is over."""

    def __init__(
        self,
        folder: Path,
        *,
        model: nn.Module | None = None,
        source: Source | None = None,
        sandbox: Sandbox | None = None,
        lock: RunLock | None = None,
    ) -> None:
        """Get ready to start it; without a `sandbox`, the run file's quotas hold.

        Without a `lock` the run is locked from the first process to the last.
        """
        self.folder, self._lock = folder, lock
        self.blueprint = Blueprint.read(folder)
        self.sandbox: Sandbox = Quotas(self.blueprint) if sandbox is None else sandbox
        self._starter = Starter(folder, self.sandbox, model, source)
        self.children: dict[str, Child] = {}
        self._things = ExitStack()
        self._clock = AwakeClock()
        self.report: Report | None = None
        self.events: list[str] = []

    @abstractmethod
    def _start_all(self, lock: RunLock) -> None:
        """Start every process."""

    @abstractmethod
    def _news(self) -> Sequence[Report]:
        """See to the processes, and return what is new of the run."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Have a checkpoint kept as soon as one can be cut, and the run end then: `wait` returns."""

    @abstractmethod
    def _end_all(self, *, failed: bool) -> None:
        """End every process, and remove from the run's folder what only they needed."""

    def _wait_for_ends(self, most_s: float) -> None:
        """Wait until every process has ended of its own accord."""
        until_s = time.monotonic() + most_s
        while time.monotonic() < until_s and any(c.how_it_ended() is None for c in self.children.values()):
            time.sleep(0.02)

    def __enter__(self) -> Self:
        """Start every process."""
        try:
            if self._lock is None:
                self._lock = self._things.enter_context(RunLock(self.folder))
            self._things.enter_context(self.sandbox)
            self._start_all(self._lock)
        except OSError as error:
            self._end(failed=True)
            raise TrainingError(
                f"{self.folder}: a process cannot be started: {error}",
                hint="see what this machine allows: `ulimit -a`, its memory, its disks",
            ) from None
        except BaseException:
            self._end(failed=True)
            raise
        return self

    def wait(
        self,
        on_report: Callable[[Report], None] | None = None,
        *,
        stop: Callable[[], bool] = lambda: False,
        timeout_s: float = math.inf,
    ) -> Report:
        """Wait until the run is over, handing on its reports; raise what went wrong.

        Once `stop` says so, the run keeps its state and ends.
        """
        begun_s, asked_s = time.monotonic(), -math.inf
        while True:
            for report in self._news():
                if on_report is not None:
                    on_report(report)
                if report.state == "done":
                    self._wait_for_ends(self._ends_in_s)
                    return report
                if report.state == "failed":
                    raise TrainingError(report.error, hint=report.hint)
            check_guarded()
            if stop() and time.monotonic() - asked_s >= STOP_AGAIN_S:
                asked_s = time.monotonic()
                self.ask_to_stop()
            if time.monotonic() - begun_s > timeout_s:
                raise TrainingError(f"the run was not over after {timeout_s:.0f} s", hint="give it more time")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process."""
        self._end(failed=error is not None)

    def _end(self, *, failed: bool) -> None:
        self._end_all(failed=failed)
        if self._lock is not None:  # else they are another launcher's
            remove_private_folder(self.blueprint.private_folder)
        self._things.close()
