"""The run's state machine: who comes and goes, which generation the run is in, what is kept, and how it ends.

Events in, decisions out: it has no sockets, no clock and, but for the store of checkpoints that it is given, no files.
"""

from __future__ import annotations

from enum import Enum

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.coordinator.checkpoints import CheckpointStore, KeptCheckpoint, NotKept, Saving, SavingPhase
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.failure_detector import WAITS_S, FailureDetector, Watchdog
from dovetail.runtime.coordinator.generations import Generations
from dovetail.runtime.coordinator.journal import Past
from dovetail.runtime.coordinator.membership import Member, Roster, Server, Worker, server_of, worker_of
from dovetail.runtime.coordinator.pool_work import PoolWork
from dovetail.runtime.coordinator.sync_work import SyncWork
from dovetail.runtime.coordinator.work import BeginAgain, Fail, Finish, GoBack, Wish, Work
from dovetail.runtime.messages import (
    Alive,
    CutLog,
    Died,
    Done,
    Failed,
    Gone,
    Hello,
    Leaves,
    LogNote,
    Message,
    Ready,
    ResidualTold,
    SaveBegun,
    Saved,
    SaveFailed,
    SaveNow,
    Staff,
    Stop,
)
from dovetail.spec.run import RunWorker


class RunState(Enum):
    """How a run stands; the values are what people read."""

    STARTING = "starting"
    RUNNING = "running"
    GOING_BACK = "going back"
    """Work under way is thrown away; servers and workers get ready for the next generation."""
    SAVING = "saving"
    """Every sample is done, or the run was asked to stop: the last checkpoint is being written."""
    DONE = "done"
    FAILED = "failed"

    @property
    def is_working(self) -> bool:
        """Whether a generation is under way."""
        return self in (RunState.RUNNING, RunState.SAVING)

    @property
    def is_over(self) -> bool:
        """Whether nothing will happen any more."""
        return self in (RunState.DONE, RunState.FAILED)


class RunStateMachine:
    """Everything that a coordinator decides."""

    def __init__(
        self, blueprint: Blueprint, store: CheckpointStore, past: Past | None, now_s: float, *, place: str = ""
    ) -> None:
        """Begin, or go on where the journal of a coordinator that died says; `place` is what hints call the folder."""
        run = blueprint.run
        self._store, self._faults, self._place = store, run.faults, place
        self.decisions = Decisions()
        self.roster = Roster(
            server_names=[spec.name for spec in blueprint.servers],
            settings=dict(run.workers_of(0)),
            stages=[[spec.name for spec in stage.workers] for stage in blueprint.stages[1:]],
        )
        is_sync = run.training.mode == "sync"
        self.work: Work = (SyncWork if is_sync else PoolWork)(blueprint, self.roster, self.decisions)
        self.kept: KeptCheckpoint = store.newest()
        """The newest checkpoint that is whole."""
        self._saving = Saving(blueprint, store, self.roster, self.decisions)
        self._generations = Generations(blueprint, self.roster, self.decisions, past)
        self._watchdog = Watchdog(run.faults.patience_s)
        self.state = RunState.STARTING
        self._failures = FailureDetector(self.roster, run.faults.patience_s, now_s)
        self.lost = self._failures.lost
        self.failure = ("", "")
        self._asked_to_stop = False
        self.work.start(self.kept.manifest)

    # -- events --------------------------------------------------------------------------------------------------------

    def hello(self, address: bytes, message: Hello, now_s: float) -> None:
        """Take in a process that says who it is: for the first time, after it died, or because it was asked."""
        self.lost.pop(message.name, None)
        known = self.roster.member(message.name)
        if known is not None and known.process_id == message.process_id and known.address == address:
            known.hear(now_s)  # it was asked twice
            if message.missed == self.roster.generation and message.role == "worker" and self.state.is_working:
                self._begin_with(message, now_s)
        elif message.role == "worker":
            self._worker_came(self._worker_of(message, address, now_s), now_s)
        elif message.role == "stage worker":
            self._stage_worker_came(self._worker_of(message, address, now_s), now_s)
        elif message.name in self.roster.server_names:
            self._server_came(address, message, now_s)
        self.settle(now_s)

    def died(self, message: Died, now_s: float) -> None:
        """Take in from the launcher that a process has ended."""
        member = self.roster.member(message.name)
        if member is None or member.process_id != message.process_id:
            self.decisions.say(f"{message.name} ended: {message.how}")
        else:
            self._drop(member, message.how, now_s)
        has_all = self.roster.workers and all(self.roster.staff)
        is_needed = message.name in self.roster.server_names or not has_all
        if is_needed and not message.comes_back:
            log, again = f"{self._place}/logs/{message.name}.log", f"dovetail train --resume {self._place}"
            error = f"{message.name} ended: {message.how}, and is not started again"
            self.fail(error, f"its log is {log}; go on with: {again}")
        self.settle(now_s)

    def save_now(self, message: SaveNow, now_s: float) -> None:
        """Have a checkpoint made as soon as can be, and the run end then where that is asked for."""
        if message.stop:
            self._asked_to_stop = self._saving.ends_run = True
        if self.state.is_working:
            self._saving.is_wanted = True
        self.settle(now_s)

    def received(self, member: Member, message: Message, now_s: float) -> None:
        """Take in a message of a server or worker."""
        member.hear(now_s)
        if isinstance(message, Alive):
            if isinstance(member, Worker):
                member.note(message)
            self.decisions.send(member, Alive(name="coordinator"))
            return  # nothing changed: no need to see what can be done now
        if isinstance(message, Failed):
            self._failed(member, message, now_s)
        elif isinstance(message, Leaves) and isinstance(member, Worker):
            self._drop(member, message.why, now_s)
        elif isinstance(message, Ready) and isinstance(member, Server):
            if self._generations.ready(member, message) and not self.state.is_working:
                self._begin_generation(now_s)
        elif isinstance(message, LogNote):
            self._saving.note(message)
        elif isinstance(message, ResidualTold):
            self._saving.residual_told(message, self.work, now_s)
        elif isinstance(message, SaveBegun | Saved | SaveFailed):
            self._kept_or_not(self._saving.handle(message, now_s), now_s)
        elif self.state.is_working and getattr(message, "generation", 0) == self.roster.generation:
            if isinstance(message, Done) and isinstance(member, Worker):
                member.learn(message)
            self._watchdog.moved(now_s)
            self.work.handle(member, message, now_s)
        self.settle(now_s)

    def tick(self, now_s: float) -> None:
        """Do what is due by time."""
        if self.state.is_over:
            return
        for member, how in self._failures.find_missing(now_s):
            self._drop(member, how, now_s)
        if self.state.is_working:
            self.work.tick(now_s)
            self._kept_or_not(self._saving.tick(self.work, now_s), now_s)
            if self._saving.phase is SavingPhase.NONE and self._watchdog.is_one(self.roster.workers.values(), now_s):
                self._begin_again("nothing moves, and nobody is at work; the work under way is handed out again", now_s)
        else:
            self._generations.ask_again(now_s)
        who = self._failures.waited_in_vain(now_s, is_working=self.state.is_working)
        if who is not None:
            self.fail(f"the run waited {WAITS_S:.0f} s for {who}", "see the processes' logs in the run's folder")
        self.settle(now_s)

    # -- who comes and goes --------------------------------------------------------------------------------------------

    def _worker_of(self, message: Hello, address: bytes, now_s: float) -> Worker:
        """Return the worker that said hello; others than the run file names may join."""
        settings = self.roster.settings.get(message.name, RunWorker())
        return worker_of(message, address, now_s, self._faults.patience_s, settings)

    def _server_came(self, address: bytes, message: Hello, now_s: float) -> None:
        """Take in a server; where it was here before, its state is gone."""
        server = server_of(message, address, now_s, self._faults.patience_s)
        if message.word:
            self.decisions.say(f"{server.name}: {message.word}")
        was_here = server.name in self.roster.servers
        self.roster.servers[server.name] = server
        if self.state.is_over:
            self.decisions.send(server, Stop(reason=self.state.value))
            return
        self.roster.generation = max(self.roster.generation, message.generation)
        self._generations.heard(server.name, message.generation)
        if was_here:
            self._server_lost(f"{server.name} began anew", now_s)
        elif why := self._generations.why_not_held():
            self._go_back(why, now_s)
        else:
            self._generations.ask_servers(self.kept, now_s)

    def _worker_came(self, worker: Worker, now_s: float) -> None:
        """Take in a worker; where it was here before, it begins anew."""
        self._forget_worker(worker.name, now_s)
        self.roster.workers[worker.name] = worker
        if self.state.is_over:
            self.decisions.send(worker, Stop(reason=self.state.value))
            return
        if self.roster.first_worker_s is None:
            self.roster.first_worker_s = now_s
        self._generations.tell_again(worker)
        self.decisions.send(worker, self.roster.reset())
        if self.state.is_working:
            self.work.join(worker, now_s)

    def _begin_with(self, message: Hello, now_s: float) -> None:
        """Tell a worker again that the generation began: a connection may have broken just then."""
        worker = self.roster.workers[message.name]
        self._forget_worker(worker.name, now_s)  # what it was given in this generation it has not taken
        self.roster.workers[worker.name] = worker
        went_back = message.generation < self.roster.era
        self.decisions.send(worker, self.roster.reset(self.roster.began_at, went_back=went_back))
        self.work.join(worker, now_s)

    def _forget_worker(self, name: str, now_s: float) -> None:
        """Have others do a worker's tasks, where it was here, and servers forget it."""
        if self.roster.workers.pop(name, None) is None:
            return
        self.decisions.send_all(self.roster.servers.values(), Gone(worker=name))
        if self.state.is_working:
            self.work.drop(name, now_s)

    def _stage_worker_came(self, worker: Worker, now_s: float) -> None:
        """Take in a worker of a stage after the first: it gets no tasks, and those of the first are told of it."""
        self._generations.tell_again(worker)
        was_here = worker.name in self.roster.stage_workers
        self.roster.stage_workers[worker.name] = worker
        if self.state.is_over:
            self.decisions.send(worker, Stop(reason=self.state.value))
            return
        self.decisions.send(worker, self.roster.reset())
        self._tell_staff()
        if was_here and self.state.is_working:  # and what it had under way is gone
            self._begin_again(f"{worker.name} began anew; the step is done again", now_s)
        elif self.state.is_working:
            self.work.join_stage(worker, now_s)

    def _tell_staff(self) -> None:
        """Tell workers of the first stage who is there of the others."""
        staff = Staff(generation=self.roster.generation, stages=self.roster.staff)
        self.decisions.send_all(self.roster.workers.values(), staff)

    def _failed(self, member: Member, message: Failed, now_s: float) -> None:
        """End the run where one of its own processes cannot go on; a worker that joined is on its own."""
        if isinstance(member, Worker) and member.name not in {*self.roster.settings, *self.roster.stage_workers}:
            self._drop(member, message.error, now_s)
        else:
            self.fail(f"{message.name}: {message.error}", message.hint)

    def _drop(self, member: Member, how: str, now_s: float) -> None:
        if self.state.is_over:
            return
        if isinstance(member, Server):
            self.roster.servers.pop(member.name, None)
            self._server_lost(f"{member.name} is lost: {how}", now_s)
        elif self.roster.stage_workers.pop(member.name, None) is not None:
            self._tell_staff()
            if self.state.is_working:
                self._begin_again(f"{member.name} is lost: {how}; the step is done again", now_s)
        else:
            self.decisions.say(f"{member.name} is lost: {how}; its tasks go to others")
            self._forget_worker(member.name, now_s)

    # -- what follows --------------------------------------------------------------------------------------------------

    def settle(self, now_s: float) -> None:
        """Do what has become possible, until nothing more has."""
        while self.state.is_working:
            if self.work.wish is not None:
                wish, self.work.wish = self.work.wish, None
                self._carry_out(wish, now_s)
                continue
            self._saving.look(self.work.step, now_s, self.work.position)
            if self._saving.is_due and self.work.can_save and self.state.is_working:
                self._kept_or_not(self._saving.begin(self.work, now_s), now_s)
                continue
            if self.state is RunState.SAVING:
                return  # everything is done
            if self.decisions.journal_is_long and self.work.can_save:
                self.decisions.write(start=self.work.as_start())
            self.work.advance(now_s, self._saving.pause)
            if self.work.wish is None:
                return

    def _carry_out(self, wish: Wish, now_s: float) -> None:
        if isinstance(wish, GoBack):
            self._go_back(wish.reason, now_s)
        elif isinstance(wish, BeginAgain):
            self._begin_again(wish.reason, now_s)
        elif isinstance(wish, Fail):
            self.fail(wish.error, wish.hint)
        elif isinstance(wish, Finish):
            self.state, self._saving.ends_run = RunState.SAVING, True
            if self.kept.manifest.step == self.work.step and not self._saving.is_wanted:
                self._kept_or_not(self.kept, now_s)  # nothing was done since
            else:
                self._saving.is_wanted = True

    def _go_back(self, reason: str, now_s: float) -> None:
        """Return to the last checkpoint as a whole: no mixture of old and new shards."""
        self.kept = self._store.newest()
        self.decisions.say(f"{reason}; the run goes back to the checkpoint of step {self.kept.manifest.step}")
        self._leave_generation(now_s)
        self._generations.forget_past()
        self._generations.ask_servers(self.kept, now_s)

    def _begin_again(self, reason: str, now_s: float) -> None:
        """Throw away what is under way and go on with the servers as they are."""
        self.decisions.say(reason)
        self._generations.remember(self.work.as_start(), self.work.decided)
        self._leave_generation(now_s)
        self._generations.ask_servers(self.kept, now_s)

    def _server_lost(self, reason: str, now_s: float) -> None:
        """Have everyone wait for a server, which comes back as it was where its redo log is whole."""
        if not self._faults.redo_log or not (self.state.is_working or self._generations.has_past):
            self._go_back(reason, now_s)
            return
        self.decisions.say(f"{reason}; the others wait for it")
        if self.state.is_working:
            self._generations.remember(self.work.as_start(), self.work.decided)
        self._leave_generation(now_s)
        if why := self._generations.why_not_held():
            self._go_back(why, now_s)
        else:
            self._generations.ask_servers(self.kept, now_s)

    def _leave_generation(self, now_s: float) -> None:
        """Throw away what is under way."""
        self.state = RunState.GOING_BACK
        self._failures.began(now_s)
        self._saving.drop()
        self._saving.ends_run = self._asked_to_stop
        self._generations.leave()

    def _begin_generation(self, now_s: float) -> None:
        """Start handing out work from where the servers are."""
        past = self._generations.begin()
        if past is not None:
            self.work.go_on(past)
        else:
            self.work.start(self.kept.manifest)
        others = self._generations.others_than(self.work.step)
        if others:
            self._go_back(f"{self.work.step} steps count, and servers hold others ({others})", now_s)
            return
        if self.kept.manifest.step == self.work.step:
            self.work.stands_at(str(self.kept.folder.absolute()))
        self.decisions.write(start=self.work.as_start())
        self.state = RunState.RUNNING
        self._failures.began(now_s)
        workers = [*self.roster.stage_workers.values(), *self.roster.workers.values()]
        self.decisions.send_all(workers, self.roster.begin(self.work.step, went_back=past is None))
        self._watchdog.moved(now_s)
        self.work.begin(now_s)
        self._saving.is_wanted = self._asked_to_stop

    # -- checkpoints and the end ---------------------------------------------------------------------------------------

    def _kept_or_not(self, outcome: KeptCheckpoint | NotKept | None, now_s: float) -> None:
        """Note what came of a checkpoint: after the last one the run is done, and it must not be missing."""
        if isinstance(outcome, KeptCheckpoint):
            self.kept, step = outcome, outcome.manifest.step
            self.decisions.say(f"checkpoint of step {step} is kept")
            self.decisions.send_all(self.roster.servers.values(), CutLog(step=step))
            if self._saving.was_last:
                self._end(RunState.DONE)
        elif outcome is not None and self._saving.was_last:
            self.fail(f"the last checkpoint could not be written: {outcome.why}", outcome.hint)
        elif outcome is not None:
            self.decisions.say(f"a checkpoint could not be written: {outcome.why}; the run goes on")

    def fail(self, error: str, hint: str) -> None:
        """End the run with an error."""
        if not self.state.is_over:
            self.failure = (error, hint)
            self._end(RunState.FAILED)

    def _end(self, state: RunState) -> None:
        self.state = state
        self.decisions.send_all(self.roster.everyone, Stop(reason=state.value))
