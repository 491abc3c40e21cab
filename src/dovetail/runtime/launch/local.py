"""Processes on this machine: started, watched, started again when they die."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from torch import nn

from dovetail.data.source import Source
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import ROWS, log_of
from dovetail.runtime.launch.entry import run_worker
from dovetail.runtime.launch.prepare import COORDINATOR, LAUNCHER
from dovetail.runtime.messages import Died, Report, SaveNow, Status
from dovetail.runtime.process import Process
from dovetail.testbed.quota import CpuQuota
from dovetail.transport import Caller, sweep

LOOK_S = 0.1
ENDED_WELL = "exit status 0"
OVER_S = 3.0
"""How long a process that ended well is left alone: so does everyone when the run is over."""
ASK_AGAIN_S = 2.0
"""When a question to a coordinator that ended in the same moment is put again."""
ANSWER_S = 60.0
"""How long the coordinator may take to answer, restarts included."""
PRELOAD = ["dovetail.runtime.worker.loop", "dovetail.data.load", "dovetail.models.load"]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(slots=True)
class Child:
    """A process that was started, and how often."""

    name: str
    handle: Any
    starts: int = 1
    ended_s: float | None = None
    """When it was seen to have ended of its own accord."""

    @property
    def process_id(self) -> int:
        """Return the process id."""
        return int(self.handle.pid)

    def how_it_ended(self) -> str | None:
        """Return how it ended, or None while it runs."""
        code = self.handle.poll() if isinstance(self.handle, subprocess.Popen) else self.handle.exitcode
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


class LocalRun:
    """A run whose processes are children of this one.

    with LocalRun(folder) as run:
        run.wait()
    """

    def __init__(self, folder: Path, *, model: nn.Module | None = None, source: Source | None = None) -> None:
        """Get ready to start what `prepare` made."""
        self.folder = folder
        self.blueprint = Blueprint.read(folder)
        self._model, self._source = model, source
        self._process = Process(folder, LAUNCHER)
        self.children: dict[str, Child] = {}
        self.quotas: dict[str, CpuQuota] = {}
        self._things = ExitStack()
        self._line: Caller | None = None
        self._context = multiprocessing.get_context("forkserver")
        self._answered_s = time.monotonic()
        self._request: int | None = None
        self._asked_s = 0.0
        self.report: Report | None = None
        self.events: list[str] = []

    # -- starting ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalRun:
        """Start every process."""
        run = self.blueprint.run
        try:
            for name, worker in run.each_worker():
                if worker.cores is not None:
                    self.quotas[name] = self._things.enter_context(CpuQuota(name, worker.cores))
            for spec in self.blueprint.servers:
                if run.servers.cores is not None:
                    self.quotas[spec.name] = self._things.enter_context(CpuQuota(spec.name, run.servers.cores))
            for name in [COORDINATOR, *(spec.name for spec in self.blueprint.servers)]:
                self._start_role(name)
            self._context.set_forkserver_preload(PRELOAD)
            for name, _ in run.each_worker():
                self.start_worker(name)
            self._line = self._process.call_coordinator()
            self._answered_s = time.monotonic()
        except BaseException:
            self._end()
            raise
        return self

    def _start_role(self, name: str) -> None:
        """Start the coordinator or a server."""
        environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
        handle = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", "dovetail.runtime.launch.entry", str(self.folder), name],
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        self._started(name, handle)

    def start_worker(self, name: str) -> None:
        """Start a worker, from a process that has torch already."""
        handle = self._context.Process(
            target=run_worker, args=(str(self.folder), name, self._model, self._source), name=name
        )
        handle.start()
        self._started(name, handle)

    def _started(self, name: str, handle: Any) -> None:
        """Note a process, and put it under its quota."""
        if name in self.children:
            self.children[name].handle, self.children[name].ended_s = handle, None
            self.children[name].starts += 1
        else:
            self.children[name] = Child(name, handle)
        if name in self.quotas:
            self.quotas[name].add(handle.pid)

    # -- watching ------------------------------------------------------------------------------------------------------

    def wait(self, on_report: Callable[[Report], None] | None = None, *, timeout_s: float | None = None) -> Report:
        """Wait until the run is over; raise what went wrong."""
        begun_s = time.monotonic()
        while True:
            report = self.look()
            if report is not None and on_report is not None:
                on_report(report)
            if report is not None and report.state == "done":
                return report
            if report is not None and report.state == "failed":
                raise TrainingError(report.error, hint=report.hint)
            if timeout_s is not None and time.monotonic() - begun_s > timeout_s:
                raise TrainingError(f"the run was not over after {timeout_s:.0f} s", hint="give it more time")

    def look(self, timeout_s: float = LOOK_S) -> Report | None:
        """See to the processes, and return news of the run where there are any."""
        line = self._need_line()
        if self._request is None or time.monotonic() - self._asked_s > ASK_AGAIN_S:
            line.abandon()  # a coordinator that came back knows nothing of an older question
            self._request = line.ask(Status())
            self._asked_s = time.monotonic()
        letter = line.receive(timeout_s)
        report: Report | None = None
        if letter is not None and isinstance(letter.message, Report):
            self._request = None
            self._answered_s = time.monotonic()
            self.report = report = letter.message
            self.events.extend(report.events)
            if report.state in ("done", "failed"):
                return report
            for name, process_id in report.lost:
                self._end_lost(name, process_id)
            time.sleep(timeout_s)
        self._restart_dead()
        if time.monotonic() - self._answered_s > ANSWER_S:
            raise TrainingError(
                f"the coordinator has not answered for {ANSWER_S:.0f} s",
                hint=f"its log is {log_of(self.folder, COORDINATOR)}",
            )
        return report

    def _end_lost(self, name: str, process_id: int) -> None:
        """End a process that does not answer: it will be started again."""
        child = self.children.get(name)
        if child is not None and child.process_id == process_id and child.how_it_ended() is None:
            os.kill(process_id, signal.SIGKILL)

    def _restart_dead(self) -> None:
        """Start again what has died, as often as the run allows."""
        faults = self.blueprint.run.faults
        for child in list(self.children.values()):
            how = child.how_it_ended()
            if how is None or self._may_be_over(child, how):
                continue
            dead_id, name = child.process_id, child.name
            is_role = name == COORDINATOR or any(spec.name == name for spec in self.blueprint.servers)
            comes_back = child.starts <= faults.restarts and (is_role or faults.restart_workers)
            if name == COORDINATOR:
                self._request = None
                if not comes_back:
                    raise TrainingError(
                        f"the coordinator ended: {how}, and is not started again",
                        hint=f"go on with: dovetail train --resume {self.folder}",
                    )
            else:
                self._need_line().send(Died(name=name, process_id=dead_id, how=how, comes_back=comes_back))
            if self.blueprint.lanes is not None:
                sweep(Path(self.blueprint.lanes), psutil.pids())
            if not comes_back:
                del self.children[name]
            elif is_role:
                self._start_role(name)
            else:
                self.start_worker(name)

    def _may_be_over(self, child: Child, how: str) -> bool:
        """Say whether a process may have been told to end, and the coordinator be about to say why."""
        if how != ENDED_WELL:
            return False
        child.ended_s = child.ended_s or time.monotonic()
        return time.monotonic() - child.ended_s < OVER_S

    def _need_line(self) -> Caller:
        """Return the line to the coordinator."""
        if self._line is None:
            raise TrainingError("the run is not started", hint="use it in a `with` block")
        return self._line

    # -- ending --------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Have a checkpoint kept as soon as one can be cut, and the run end then: `wait` returns."""
        self._need_line().send(SaveNow(stop=True))

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """Keep a checkpoint as soon as one can be cut, then end the run."""
        self.ask_to_stop()
        self.wait(timeout_s=timeout_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process."""
        self._end(grace_s=5.0 if error is None else 0.5)

    def _end(self, grace_s: float = 0.5) -> None:
        """End what still runs, kindly first."""
        deadline_s = time.monotonic() + grace_s
        while time.monotonic() < deadline_s and any(c.how_it_ended() is None for c in self.children.values()):
            time.sleep(0.02)
        for child in self.children.values():
            if child.how_it_ended() is None:
                child.handle.kill()
            child.handle.wait() if isinstance(child.handle, subprocess.Popen) else child.handle.join(5)
        if self._line is not None:
            self._line.close()
            self._line = None
        self._things.close()
        if self.blueprint.lanes is not None:
            shutil.rmtree(self.blueprint.lanes, ignore_errors=True)
        shutil.rmtree(self.folder / ROWS, ignore_errors=True)
