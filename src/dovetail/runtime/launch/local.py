"""Processes on this machine: started, watched, started again when they die."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from dovetail.data.source import Source
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import REDO, ROWS, ask_for
from dovetail.runtime.launch.child import Child, FalseStarts
from dovetail.runtime.launch.elastic_workers import ElasticWorkers
from dovetail.runtime.launch.hosts.protocol import HERE, Handle
from dovetail.runtime.launch.sandbox import Sandbox, check_ring
from dovetail.runtime.launch.watched_run import LOOK_S, WatchedRun
from dovetail.runtime.messages import Died, Report, SaveNow, Status
from dovetail.runtime.messages.senders import LAUNCHER
from dovetail.runtime.prepare.lock import RunLock
from dovetail.runtime.prepare.resolve import COORDINATOR
from dovetail.runtime.process import Process
from dovetail.transport import Caller, sweep

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet

ASK_AGAIN_S = 2.0
"""When a question to a coordinator that ended in the same moment is put again."""
ANSWER_S = 45.0
"""How long the coordinator may take to answer before it is started again; then twice as long."""


class LocalRun(WatchedRun):
    """A run with coordinator and servers.

    with LocalRun(folder) as run:
        run.wait()
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: nn.Module | None = None,
        source: Source | None = None,
        sandbox: Sandbox | None = None,
        lock: RunLock | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        """Get ready to start what `prepare` made.

        With a `fleet`, workers are on its hosts; coordinator and servers are children of this process all the same.
        """
        super().__init__(folder, model=model, source=source, sandbox=sandbox, lock=lock)
        self._fleet = fleet
        self._process = Process(folder, LAUNCHER)
        self._roles = [COORDINATOR, *(spec.name for spec in self.blueprint.servers)]
        self._elastic = ElasticWorkers(folder, self.blueprint, self.children, self._start)
        self._starter.environment_of = self._elastic.environment_of
        self._false_starts = FalseStarts(folder, self.children)
        self._line: Caller | None = None
        self._answer_s = ANSWER_S
        self._answered_s = self._clock.now()
        self._request: int | None = None
        self._asked_s = 0.0
        self._next_event = 0

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start_all(self, lock: RunLock) -> None:
        check_ring(self.blueprint.run, self.sandbox)
        self._starter.inherited = (lock.descriptor,)
        for name in [*self._roles, *(name for name, _ in self.blueprint.run.each_worker())]:
            self._start(name)
        self._line = self._process.call_coordinator()
        self._answered_s = self._clock.now()

    def _start(self, name: str) -> None:
        """Start a process, for the first time or again."""
        is_role = name in self._roles
        handle: Handle
        if is_role:
            handle = self._starter.start_role(name)
        elif self._fleet is None:
            handle = self._starter.start_worker(name)
        else:
            handle = self._fleet.start(name, self.folder, self.blueprint.run)
        if name in self.children:
            self.children[name].handle, self.children[name].ended_s = handle, None
            self.children[name].starts += 1
        else:
            self.children[name] = Child(name, handle, is_role=is_role)
        if handle.host == HERE and handle.pid:
            self.sandbox.started(name, handle.pid)

    # -- watching ------------------------------------------------------------------------------------------------------

    def _news(self) -> list[Report]:
        report = self.look()
        self._false_starts.check(report)
        return [] if report is None else [report]

    def look(self, timeout_s: float = LOOK_S) -> Report | None:
        """See to the processes, and return news of the run where there are any."""
        line = self._need_line()
        if self._request is None or time.monotonic() - self._asked_s > ASK_AGAIN_S:
            line.abandon()  # a coordinator that came back knows nothing of an older question
            self._request = line.ask(Status(since=self._next_event))
            self._asked_s = time.monotonic()
        envelope = line.receive(timeout_s)
        report: Report | None = None
        if envelope is not None and isinstance(envelope.message, Report):
            self._request = None
            self._answered_s, self._answer_s = self._clock.now(), ANSWER_S
            self.report = report = envelope.message
            self.events.extend(report.events)
            self._next_event = report.next_event
            if report.state in ("done", "failed"):
                return report
            for name, process_id in report.lost:
                self._end_lost(name, process_id)
            time.sleep(timeout_s)
        self._restart_dead()
        self._elastic.see_to(report)
        if self._clock.now() - self._answered_s > self._answer_s:
            self._answered_s, self._answer_s = self._clock.last_s, 2 * self._answer_s
            self.children[COORDINATOR].handle.kill()  # it stands still, and is started again
        return report

    def _end_lost(self, name: str, process_id: int) -> None:
        """End a process that does not answer: it will be started again."""
        child = self.children.get(name)
        if child is not None and child.process_id == process_id and child.how_it_ended() is None:
            child.handle.kill()

    def _restart_dead(self) -> None:
        """Start again what has died, as often as the run allows."""
        faults = self.blueprint.run.faults
        for child in list(self.children.values()):
            how = child.how_it_ended()
            if how is None or (child.may_have_been_told() and not self._elastic.is_leaving(child.name)):
                continue
            if self._elastic.is_leaving(child.name):
                if how != "exit status 0":  # else it has said so itself
                    self._need_line().send(
                        Died(name=child.name, process_id=child.process_id, how=how, comes_back=False)
                    )
                self._elastic.left(child.name)
                if self._fleet is not None:
                    self._fleet.left(child.name)
                continue
            comes_back = child.starts <= faults.restarts and (child.is_role or faults.restart_workers)
            comes_back = comes_back and self._elastic.may_start_again(child)
            if child.name == COORDINATOR:
                self._request = None
                if not comes_back:
                    raise TrainingError(
                        f"the coordinator ended: {how}, and is not started again",
                        hint=f"go on with: dovetail train --resume {self.folder}",
                    )
            else:
                self._need_line().send(
                    Died(name=child.name, process_id=child.process_id, how=how, comes_back=comes_back)
                )
            if self.blueprint.lanes is not None:
                sweep(Path(self.blueprint.lanes))
            if comes_back:
                self._start(child.name)
            else:
                del self.children[child.name]
                self._elastic.go_on_without(child.name)
                if self._fleet is not None:
                    self._fleet.left(child.name)

    def _need_line(self) -> Caller:
        """Return the line to the coordinator."""
        if self._line is None:
            raise TrainingError("the run is not started", hint="use it in a `with` block")
        return self._line

    def resize(self, workers: int) -> None:
        """Ask for so many workers: more are started, or some leave, while the rest go on."""
        ask_for(self.folder, workers)

    # -- ending --------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Have a checkpoint kept as soon as one can be cut, and the run end then: `wait` returns."""
        self._need_line().send(SaveNow(stop=True))

    def _end_all(self, *, failed: bool) -> None:
        """End what still runs, kindly first."""
        self._wait_for_ends(0.5 if failed else 5.0)
        for child in self.children.values():
            child.end()
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._lock is not None:  # else they are another launcher's
            for name in (ROWS, REDO):
                shutil.rmtree(self.folder / name, ignore_errors=True)
