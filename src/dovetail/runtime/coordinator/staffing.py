"""Workers of stages after the first: they get no tasks, and those of the first stage are told who is there."""

from __future__ import annotations

from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.members import Worker
from dovetail.runtime.coordinator.roster import Roster
from dovetail.runtime.coordinator.state import RunState
from dovetail.runtime.messages import Staff, Stop


class Staffing:
    """Who is there of the later stages."""

    def __init__(self, roster: Roster, decisions: Decisions) -> None:
        """Keep the roster, which says who there should be."""
        self._roster, self._decisions = roster, decisions

    def came(self, worker: Worker, state: RunState) -> bool:
        """Take in a worker; True where another process of its name was there before."""
        was_here = worker.name in self._roster.stage_workers
        self._roster.stage_workers[worker.name] = worker
        if state.is_over:
            self._decisions.send(worker, Stop(reason=state.value))
            return False
        self._decisions.send(worker, self._roster.reset())
        self._tell()
        return was_here

    def lost(self, name: str) -> bool:
        """Go on without a worker; False where it is of the first stage."""
        if self._roster.stage_workers.pop(name, None) is None:
            return False
        self._tell()
        return True

    def _tell(self) -> None:
        """Tell workers of the first stage who is there of the others."""
        staff = Staff(generation=self._roster.generation, stages=self._roster.staff)
        self._decisions.send_all(self._roster.workers.values(), staff)
