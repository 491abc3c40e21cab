"""The processes of a run on this machine: how each is started, and how it ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dovetail.data.source import Source
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import log_of
from dovetail.runtime.launch.fork_server import UNSEEN, ForkedProcess, ForkServerEnded, fork_server
from dovetail.runtime.launch.hosts.protocol import Handle
from dovetail.runtime.launch.sandbox import Sandbox
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.main_guard import travelling
from dovetail.runtime.prepare.resolve import COORDINATOR

OVER_S = 3.0
"""How long a process that ended well is left alone: so does everyone when the run is over."""
END_S = 5.0
"""How long a process that was killed may take to be gone."""
STARTS = 2
"""How often a worker is tried to be started: another process that starts workers takes the place of one that ended."""
MOST = 4
"""How often in a row a process may end before it was heard of."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(slots=True)
class Child:
    """A process that was started, and how often."""

    name: str
    handle: Handle
    is_role: bool
    """Coordinator or server; else a worker."""
    starts: int = 1
    ended_s: float | None = None
    """When it was seen to have ended of its own accord."""

    @property
    def process_id(self) -> int:
        """Return the process id."""
        return self.handle.pid

    def how_it_ended(self) -> str | None:
        """Return how it ended, or None while it runs."""
        return self.handle.how_it_ended()

    def may_have_been_told(self) -> bool:
        """Say whether it ended well a moment ago: the coordinator may be about to say that the run is over."""
        if self.how_it_ended() not in ("exit status 0", UNSEEN):
            return False
        self.ended_s = self.ended_s or time.monotonic()
        return time.monotonic() - self.ended_s < OVER_S

    def end(self) -> None:
        """End it where it still runs, and wait until it has ended."""
        if self.how_it_ended() is None:
            self.handle.kill()
        self.handle.wait(END_S)


class Starter:
    """Starts processes of a run, each on the host that the run's sandbox says."""

    def __init__(self, folder: Path, sandbox: Sandbox, model: nn.Module | None, source: Source | None) -> None:
        """Keep what workers are given."""
        self._folder, self._sandbox = folder, sandbox
        self._model, self._source = travelling(model), travelling(source)
        self.environment_of: Callable[[str], dict[str, str]] = lambda _: {}
        """What a worker's process has otherwise than this one."""
        self.inherited: tuple[int, ...] = ()
        """Open files that coordinator and servers hold as well."""

    def start_role(self, name: str) -> ForkedProcess:
        """Start the coordinator or a server, with one thread; return its handle."""
        return self._start("run_role", name, dict.fromkeys(THREADS, "1"), held=self.inherited)

    def start_worker(self, name: str) -> ForkedProcess:
        """Start a worker; return its handle."""
        things = (self._model, self._source, self._sandbox.entrance(name))
        return self._start("run_worker", name, self.environment_of(name), things=things)

    def start_sharded(self, name: str, generation: int) -> ForkedProcess:
        """Start a worker that owns rows, of a generation of them; return its handle."""
        return self._start("run_sharded", name, {}, things=(self._model, self._source, generation))

    def _start(
        self,
        target: str,
        name: str,
        environment: Mapping[str, str],
        *,
        things: tuple[Any, ...] | None = None,
        held: tuple[int, ...] = (),
    ) -> ForkedProcess:
        """Have a process forked; where the one that forks ended, another takes its place, so many times."""
        for attempt in range(1, STARTS + 1):
            try:
                words, every = (str(self._folder), name), {**os.environ, **environment}
                return fork_server().fork(target, words, every, things=things, held=held)
            except ForkServerEnded as error:
                if attempt == STARTS:
                    raise TrainingError(f"{name} cannot be started: {error}", hint=error.hint) from None
        raise AssertionError("a start returns or raises")


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
