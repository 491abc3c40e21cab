"""The run's state machine: who comes and goes, which generation the run is in, what is kept, and how it ends."""

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
from dovetail.runtime.coordinator.work import BeginAgain, Fail, Finish, GoBack, ServerLost, Wish, Work
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


class LaterStages:
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


class Admission:
    """Takes them in."""

    def __init__(
        self,
        roster: Roster,
        decisions: Decisions,
        work: Work,
        generations: Generations,
        staffing: LaterStages,
        patience_s: float,
    ) -> None:
        """Keep what those who come are told by."""
        self._roster, self._decisions, self._work = roster, decisions, work
        self._generations, self._staffing, self._patience_s = generations, staffing, patience_s

    def hello(
        self, address: bytes, message: Hello, now_s: float, *, state: RunState, kept: KeptCheckpoint
    ) -> Wish | None:
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
        self, server: Server, generation: int, now_s: float, *, state: RunState, kept: KeptCheckpoint
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
        self._saving = Saving(run.checkpoint, store, self.roster, self.decisions, run.validation, blueprint.samples)
        self._saving.asks_workers = run.compression.is_wanted and run.training.dense == "ps"
        self._saving.is_sync = is_sync
        self._generations = Generations(blueprint, self.roster, self.decisions, past)
        self._staffing = LaterStages(self.roster, self.decisions)
        self._arrivals = Admission(
            self.roster, self.decisions, self.work, self._generations, self._staffing, run.faults.patience_s
        )
        self._watchdog = Watchdog(run.faults.patience_s)
        self.state = RunState.STARTING
        self._failures = FailureDetector(self.roster, run.faults.patience_s, now_s)
        self.lost = self._failures.lost
        self.failure = ("", "")
        self._asked_to_stop = False
        self.work.start(self.kept.manifest)

    # -- events --------------------------------------------------------------------------------------------------------

    def hello(self, address: bytes, message: Hello, now_s: float) -> None:
        """Take in a process that says who it is."""
        self.lost.pop(message.name, None)
        wish = self._arrivals.hello(address, message, now_s, state=self.state, kept=self.kept)
        if wish is not None:
            self._carry_out(wish, now_s)
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
            if self._saving.stage is SavingPhase.NONE and self._watchdog.is_one(self.roster.workers.values(), now_s):
                self._begin_again("nothing moves, and nobody is at work; the work under way is handed out again", now_s)
        else:
            self._generations.ask_again(now_s)
        who = self._failures.waited_in_vain(now_s, is_working=self.state.is_working)
        if who is not None:
            self.fail(f"the run waited {WAITS_S:.0f} s for {who}", "see the processes' logs in the run's folder")
        self.settle(now_s)

    # -- who is there --------------------------------------------------------------------------------------------------

    def _failed(self, member: Member, message: Failed, now_s: float) -> None:
        """End the run where one of its own processes cannot go on; a worker that joined is on its own."""
        if isinstance(member, Worker) and member.name not in {*self.roster.settings, *self.roster.stage_workers}:
            self._drop(member, message.error, now_s)
        else:
            self.fail(f"{message.name}: {message.error}", message.hint)

    def _drop(self, member: Member, how: str, now_s: float) -> None:
        """Go on without a member."""
        if self.state.is_over:
            return
        if isinstance(member, Server):
            self.roster.servers.pop(member.name, None)
            self._server_lost(f"{member.name} is lost: {how}", now_s)
        elif self._staffing.lost(member.name):
            if self.state.is_working:
                self._begin_again(f"{member.name} is lost: {how}; the step is done again", now_s)
        else:
            self.decisions.say(f"{member.name} is lost: {how}; its tasks go to others")
            self._arrivals.forget_worker(member.name, now_s, state=self.state)

    # -- what follows --------------------------------------------------------------------------------------------------

    def settle(self, now_s: float) -> None:
        """Do what has become possible, until nothing more has."""
        while self.state.is_working:
            if self.work.wish is not None:
                wish, self.work.wish = self.work.wish, None
                self._carry_out(wish, now_s)
                continue
            self._saving.look(self.work.step, now_s, self.work.position)
            self.work.pause = self._saving.pause
            if self._saving.is_due and self.work.can_save and self.state.is_working:
                self._kept_or_not(self._saving.begin(self.work, now_s), now_s)
                continue
            if self.state is RunState.SAVING:
                return  # everything is done
            if self.decisions.journal_is_long and self.work.can_save:
                self.decisions.write(start=self.work.as_start())
            self.work.advance(now_s)
            if self.work.wish is None:
                return

    def _carry_out(self, wish: Wish, now_s: float) -> None:
        """Do what the work needs."""
        if isinstance(wish, GoBack):
            self._go_back(wish.reason, now_s)
        elif isinstance(wish, ServerLost):
            self._server_lost(wish.reason, now_s)
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
        """Have everyone stop."""
        self.state = state
        self.decisions.send_all(self.roster.everyone, Stop(reason=state.value))
