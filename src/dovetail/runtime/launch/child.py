"""The processes of a run on this machine: how each is started, and how it ended."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import util
from pathlib import Path
from typing import Any

from torch import nn

from dovetail.data.source import Source
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import log_of
from dovetail.runtime.launch.entry import LEAVE, run_worker
from dovetail.runtime.launch.hosts.protocol import HERE, Handle
from dovetail.runtime.launch.ready import Role, start_ready, take_ready, wait_until_ready
from dovetail.runtime.launch.sandbox import Sandbox
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.main_guard import travelling
from dovetail.runtime.prepare.resolve import COORDINATOR

PREFIX = "dovetail-starter-"
HELD = "held"


@cache
def keep_starter_folder() -> Path:
    """Have the process that starts workers keep its socket in a folder of ours, from the first time on."""
    sweep_starter_folders()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    draft = os.open(folder / f".{HELD}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)  # open until this process ends
    fcntl.flock(draft, fcntl.LOCK_EX)
    (folder / f".{HELD}").rename(folder / HELD)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before
    util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-200)
    return folder


def sweep_starter_folders() -> None:
    """Remove the folders of processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it goes away, or is another user's
            held = os.open(folder / HELD, os.O_WRONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


OVER_S = 3.0
"""How long a process that ended well is left alone: so does everyone when the run is over."""
END_S = 5.0
"""How long a process that was killed may take to be gone."""
STARTS = 2
"""How often a worker is tried to be started: another process that starts workers takes the place of one that ended."""
PRELOAD = ["dovetail.runtime.launch.preload"]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(slots=True)
class LocalHandle:
    """A process on this machine."""

    process: Any
    """A child of this process, started by it or by the one that starts workers."""
    host: str = HERE

    @property
    def pid(self) -> int:
        """Return the process id."""
        return int(self.process.pid)

    def how_it_ended(self) -> str | None:
        """Return how it ended, or None while it runs."""
        code = self.process.poll() if isinstance(self.process, subprocess.Popen) else self.process.exitcode
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def ask_to_leave(self) -> None:
        """Have a worker hand its tasks to others and end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, LEAVE)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most so long."""
        if isinstance(self.process, subprocess.Popen):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        else:
            self.process.join(timeout_s)


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
        if self.how_it_ended() != "exit status 0":
            return False
        self.ended_s = self.ended_s or time.monotonic()
        return time.monotonic() - self.ended_s < OVER_S

    def end(self) -> None:
        """End it where it still runs, and wait until it has ended."""
        if self.how_it_ended() is None:
            self.handle.kill()
        self.handle.wait(END_S)


def forking_context() -> Any:
    """Return how workers are started: forked from a process that has loaded torch, and started no thread."""
    keep_starter_folder()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def role_environment() -> dict[str, str]:
    """Return the variables of a coordinator or server: one thread each."""
    return {**os.environ, **dict.fromkeys(THREADS, "1")}


@contextmanager
def processes_ready(num_servers: int) -> Iterator[None]:
    """Have a run's processes load what they need before there is a run to start; once left, they are ready."""
    forks = forking_context().Process(target=int)  # it ends once the process that forks it has loaded everything
    forks.start()
    for role in ("coordinator", *["server"] * num_servers):
        start_ready(role, role_environment())  # type: ignore[arg-type]
    yield
    wait_until_ready()
    forks.join(60.0)


class Starter:
    """Starts processes of a run, each on the host that the run's bed says."""

    def __init__(self, folder: Path, bed: Sandbox, model: nn.Module | None, source: Source | None) -> None:
        """Keep what workers are given."""
        self._folder, self._bed = folder, bed
        self._model, self._source = travelling(model), travelling(source)
        self._context = forking_context()
        self.environment_of: Callable[[str], dict[str, str]] = lambda _: {}
        """What a worker's process has otherwise than this one."""
        self.inherited: tuple[int, ...] = ()
        """Open files that coordinator and servers hold as well."""

    def start_role(self, name: str) -> LocalHandle:
        """Start the coordinator or a server, or have one be it that is ready; return its handle."""
        words = [str(self._folder), name, str(os.getpid())]
        role: Role = "coordinator" if name == COORDINATOR else "server"
        if (ready := take_ready(role, words, self.inherited)) is not None:
            return LocalHandle(ready)
        return LocalHandle(
            subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [sys.executable, "-m", "dovetail.runtime.launch.entry", *words],
                env=role_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=self.inherited,
            )
        )

    def start_worker(self, name: str) -> LocalHandle:
        """Start a worker, from a process that has torch already; return its handle."""
        own = (self._bed.entrance(name), self.environment_of(name))
        arguments = (str(self._folder), name, self._model, self._source, *own)
        for attempt in range(1, STARTS + 1):
            process = self._context.Process(target=run_worker, args=arguments, name=name)
            try:
                process.start()
                break
            except (EOFError, ConnectionError, FileNotFoundError) as error:
                if attempt == STARTS:
                    raise TrainingError(
                        f"{name} cannot be started: the process that starts workers ended ({type(error).__name__})",
                        hint="it was killed, or ran out of memory: see the system's log (dmesg), and start again",
                    ) from None
        return LocalHandle(process)


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
