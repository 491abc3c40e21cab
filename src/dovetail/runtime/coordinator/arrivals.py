"""Processes that come: for the first time, again after they died, or because they were asked who they are."""

from __future__ import annotations

from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.generations import Generations
from dovetail.runtime.coordinator.members import Server, Worker, server_of, worker_of
from dovetail.runtime.coordinator.roster import Roster
from dovetail.runtime.coordinator.saving import Kept
from dovetail.runtime.coordinator.staffing import Staffing
from dovetail.runtime.coordinator.state import RunState
from dovetail.runtime.coordinator.work import BeginAgain, GoBack, ServerLost, Wish, Work
from dovetail.runtime.messages import Gone, Hello, Stop
from dovetail.spec.run import RunWorker


class Arrivals:
    """Takes them in."""

    def __init__(
        self,
        roster: Roster,
        decisions: Decisions,
        work: Work,
        generations: Generations,
        staffing: Staffing,
        patience_s: float,
    ) -> None:
        """Keep what those who come are told by."""
        self._roster, self._decisions, self._work = roster, decisions, work
        self._generations, self._staffing, self._patience_s = generations, staffing, patience_s

    def hello(self, address: bytes, message: Hello, now_s: float, *, state: RunState, kept: Kept) -> Wish | None:
        """Take in a process that says who it is; return what the run has to do for it."""
        known, patience_s = self._roster.member(message.name), self._patience_s
        if known is not None and known.process_id == message.process_id and known.address == address:
            known.hear(now_s)  # it was asked twice
            if message.missed == self._roster.generation and message.role == "worker" and state.is_working:
                self._begin_with(message, now_s, state=state)
            return None
        if message.role == "server":
            if message.name not in self._roster.server_names:
                return None
            server = server_of(message, address, now_s, patience_s)
            if message.word:
                self._decisions.say(f"{server.name}: {message.word}")
            return self._server_came(server, message.generation, now_s, state=state, kept=kept)
        settings = self._roster.settings.get(message.name, RunWorker())
        worker = worker_of(message, address, now_s, patience_s, settings)
        if message.role == "stage worker":
            self._generations.tell_again(worker)
            was_here = self._staffing.came(worker, state)
            if was_here and state.is_working:  # and what it had under way is gone
                return BeginAgain(f"{worker.name} began anew; the step is done again")
            if state.is_working:
                self._work.join_stage(worker, now_s)
            return None
        self._worker_came(worker, now_s, state=state)
        return None

    def _server_came(
        self, server: Server, generation: int, now_s: float, *, state: RunState, kept: Kept
    ) -> Wish | None:
        """Take in a server; where it was here before, its state is gone."""
        was_here = server.name in self._roster.servers
        self._roster.servers[server.name] = server
        if state.is_over:
            self._decisions.send(server, Stop(reason=state.value))
            return None
        self._roster.generation = max(self._roster.generation, generation)
        self._generations.heard(server.name, generation)
        if was_here:
            return ServerLost(f"{server.name} began anew")
        if why := self._generations.why_not_held():
            return GoBack(why)
        self._generations.ask_servers(kept, now_s)
        return None

    def _worker_came(self, worker: Worker, now_s: float, *, state: RunState) -> None:
        """Take in a worker; where it was here before, it begins anew."""
        self.forget_worker(worker.name, now_s, state=state)
        self._roster.workers[worker.name] = worker
        if state.is_over:
            self._decisions.send(worker, Stop(reason=state.value))
            return
        if self._roster.first_worker_s is None:
            self._roster.first_worker_s = now_s
        self._generations.tell_again(worker)
        self._decisions.send(worker, self._roster.reset())
        if state.is_working:
            self._work.join(worker, now_s)

    def _begin_with(self, message: Hello, now_s: float, *, state: RunState) -> None:
        """Tell a worker again that the generation began: a connection may have broken just then."""
        worker = self._roster.workers[message.name]
        self.forget_worker(worker.name, now_s, state=state)  # what it was given in this generation it has not taken
        self._roster.workers[worker.name] = worker
        went_back = message.generation < self._roster.era
        self._decisions.send(worker, self._roster.reset(self._roster.began_at, went_back=went_back))
        self._work.join(worker, now_s)

    def forget_worker(self, name: str, now_s: float, *, state: RunState) -> None:
        """Have others do a worker's tasks, where it was here, and servers forget it."""
        if self._roster.workers.pop(name, None) is None:
            return
        self._decisions.send_all(self._roster.servers.values(), Gone(worker=name))
        if state.is_working:
            self._work.drop(name, now_s)
