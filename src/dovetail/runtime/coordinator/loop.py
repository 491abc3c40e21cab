"""The process of the coordinator: one thread, one socket, everyone's messages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.coordinator.journal import Journal, Past, Start
from dovetail.runtime.coordinator.members import Member, Server, Worker, server_of, worker_of
from dovetail.runtime.coordinator.metrics import EVERY_S, Metrics
from dovetail.runtime.coordinator.saving import Saving
from dovetail.runtime.coordinator.work import Work, make_work
from dovetail.runtime.messages import (
    Adopt,
    Alive,
    Commit,
    Died,
    Done,
    Failed,
    Hello,
    Load,
    Message,
    Ready,
    Report,
    Reset,
    Saved,
    SaveFailed,
    SaveNow,
    ServerStats,
    Status,
    Stop,
    WhoAreYou,
)
from dovetail.runtime.process import Process
from dovetail.spec.run import RunWorker
from dovetail.transport import Letter

LOOK_S = 0.05
GRACE_S = 20.0
"""How long the first step waits for workers that are still starting."""
STUCK_S = 180.0
"""How long a run may be without the servers or workers it needs."""
STAY_S = 3.0
"""How long a coordinator stays to tell how the run ended."""
SUMMARY = "summary.json"


class Coordinator:
    """Knows who is there and what is done; `work` decides who computes what."""

    def __init__(self, process: Process) -> None:
        """Listen, and see in the journal whether this run was under way."""
        self.process, self.blueprint, self.folder = process, process.blueprint, process.folder
        run = self.blueprint.run
        self._listener = process.listen([self.blueprint.coordinator.address, self.blueprint.coordinator.local_address])
        self.journal = Journal(self.folder)
        self.metrics = Metrics(self.folder, timeline=self.blueprint.timeline)
        self.servers: dict[str, Server] = {}
        self.workers: dict[str, Worker] = {}
        self._settings = dict(run.each_worker())
        self.state = "starting"
        self._since_s = time.monotonic()
        self._past = self.journal.past()
        self.generation = self._past.start.generation if self._past else 0
        self._checkpoint = checkpoints.newest(self.folder)
        self.samples_done = self._past.start.samples_done if self._past else 0
        self._events: list[str] = []
        self._lost: dict[str, int] = {}
        self._failure: tuple[str, str] = ("", "")
        self.work: Work = make_work(self)
        self._saving = Saving(self)
        self._stop_after_save = False
        self._asked_to_stop = False
        self._begun_s = time.time()
        self._looked_s = self._turned_s = 0.0
        self._first_worker_s: float | None = None
        self._ended_s: float | None = None
        self._server_stats: dict[str, ServerStats] = {}

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the run is over and everyone knows."""
        try:
            while self._ended_s is None or time.monotonic() - self._ended_s < STAY_S:
                letter = self._listener.receive(min(LOOK_S, self.work.seconds_to_wait()))
                while letter is not None:
                    self._receive(letter)
                    letter = self._listener.receive(0)
                self.work.answer_due()
                self._look()
        finally:
            self._listener.close()
            self.metrics.close()
            self.journal.close()

    def _look(self) -> None:
        """Do what is due by time."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= 0.2:
            self._looked_s = now_s
            self._find_lost(now_s)
            if self.state in ("running", "saving"):
                self.work.look(now_s)
                self._saving.look(now_s)
            self._check_stuck(now_s)
        if now_s - self._turned_s >= EVERY_S:
            self._turned_s = now_s
            if self.state in ("running", "saving"):
                self._write_metrics(now_s)

    def _write_metrics(self, now_s: float) -> None:
        """Write a line of figures."""
        facts = {
            "time_s": round(time.time() - self._begun_s, 3),
            "generation": self.generation,
            "step": self.work.step,
            "epoch": self.work.position // self.blueprint.samples,
            "samples": self.samples_done,
        }
        self.metrics.turn(now_s, facts, self._server_stats)

    def _find_lost(self, now_s: float) -> None:
        """Give up members that have been silent for too long."""
        for member in [*self.servers.values(), *self.workers.values()]:
            if member.is_lost(now_s):
                self._lost[member.name] = member.process_id
                self._drop(member, f"silent for {now_s - member.heard_s:.1f} s")

    def _check_stuck(self, now_s: float) -> None:
        """End a run that has nobody to go on with."""
        if self.state in ("done", "failed"):
            return
        missing = [spec.name for spec in self.blueprint.servers if spec.name not in self.servers]
        if self.state in ("starting", "going back") or (self.state == "running" and not self.workers):
            if now_s - self._since_s > STUCK_S:
                who = ", ".join(missing) or ("any worker" if not self.workers else "the servers")
                self.fail(f"the run waited {STUCK_S:.0f} s for {who}", "see the processes' logs in the run's folder")
        else:
            self._since_s = now_s

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, member: Member, message: Message) -> None:
        """Send a message to a member."""
        self._listener.send(member.address, message)

    def send_servers(self, message: Message) -> None:
        """Send a message to every server."""
        for server in self.servers.values():
            self.send(server, message)

    def _receive(self, letter: Letter) -> None:
        """Act on a message."""
        message: Any = letter.message
        if isinstance(message, Hello):
            self._hello(letter.sender, message)
        elif isinstance(message, Status):
            self._listener.reply(letter, self._report())
            if self._ended_s is not None:
                self._ended_s = min(self._ended_s, time.monotonic() - STAY_S + 0.1)  # who asked knows
        elif isinstance(message, Died):
            self._died(message)
        elif isinstance(message, SaveNow):
            self._asked_to_stop = self._asked_to_stop or message.stop
            self._stop_after_save = self._stop_after_save or message.stop
            if self.state in ("running", "saving"):
                self._saving.want()
        else:
            member = self._member(letter.sender)
            if member is None:
                self._listener.send(letter.sender, WhoAreYou())
                return
            member.hear(time.monotonic())
            self._from_member(member, message, letter)

    def _member(self, address: bytes) -> Member | None:
        """Return who sent a message."""
        name = address.partition(b"/")[0].decode(errors="replace")
        member = self.servers.get(name) or self.workers.get(name)
        return member if member is not None and member.address == address else None

    def _from_member(self, member: Member, message: Any, letter: Letter) -> None:
        """Act on a message of a server or worker."""
        if isinstance(message, Alive):
            if isinstance(member, Worker):
                member.most_samples = message.most_samples
            self.send(member, Alive(name="coordinator"))
        elif isinstance(message, ServerStats):
            self._server_stats[message.name] = message
        elif isinstance(message, Failed):
            self.fail(f"{message.name}: {message.error}", message.hint)
        elif isinstance(message, Ready) and isinstance(member, Server):
            self._server_ready(member, message)
        elif isinstance(message, Saved):
            self._saving.saved(message)
        elif isinstance(message, SaveFailed):
            self._saving.failed(message)
        elif getattr(message, "generation", self.generation) != self.generation or self.state == "going back":
            return  # of work that was thrown away
        else:
            if isinstance(message, Done) and isinstance(member, Worker):
                self._done(member, message, letter)
            self.work.heed(member, message)

    def _done(self, worker: Worker, message: Done, letter: Letter) -> None:
        """Learn from a task how fast its worker is."""
        worker.learn(message)
        worker.samples += message.samples
        self.metrics.add_task(message, letter.arrays)

    # -- who is there --------------------------------------------------------------------------------------------------

    def _hello(self, address: bytes, message: Hello) -> None:
        """Take in a process."""
        now_s, patience_s = time.monotonic(), self.blueprint.run.faults.patience_s
        self._lost.pop(message.name, None)
        known: Member | None = self.servers.get(message.name) or self.workers.get(message.name)
        if self.state in ("done", "failed"):
            self._listener.send(address, Stop(reason=self.state))
        elif known is not None and known.process_id == message.process_id and known.address == address:
            known.hear(now_s)  # it was asked twice
        elif message.role == "server":
            self.generation = max(self.generation, message.generation)
            self.servers[message.name] = server_of(message, address, now_s, patience_s)
            if known is not None:
                self.go_back(f"{message.name} came back without its state")
            elif self.state in ("starting", "going back"):
                self._begin_when_servers_are_there()
        elif message.role == "worker":
            if known is not None:
                self._drop_worker(message.name)
            worker = worker_of(message, address, now_s, patience_s, self._settings.get(message.name, RunWorker()))
            self.workers[message.name] = worker
            self._first_worker_s = self._first_worker_s or now_s
            self.send(worker, Reset(generation=self.generation))
            if self.state in ("running", "saving"):
                self.work.join(worker)

    def may_begin(self) -> bool:
        """Say whether the first step can be cut: all workers are there, or have had their time to come."""
        if self._first_worker_s is None:
            return False
        return len(self.workers) >= len(self._settings) or time.monotonic() - self._first_worker_s > GRACE_S

    def _died(self, message: Died) -> None:
        """Hear from the launcher that a process has ended."""
        member = self.servers.get(message.name) or self.workers.get(message.name)
        if member is None or member.process_id != message.process_id:
            self.say(f"{message.name} ended: {message.how}")
        else:
            self._drop(member, message.how)
        alive = self.workers or message.comes_back or self.state in ("done", "failed")
        if not message.comes_back and (not alive or message.name in {spec.name for spec in self.blueprint.servers}):
            self.fail(
                f"{message.name} ended: {message.how}, and is not started again",
                f"its log is {self.folder}/logs/{message.name}.log; go on with: dovetail train --resume {self.folder}",
            )

    def _drop(self, member: Member, how: str) -> None:
        """Go on without a member."""
        if isinstance(member, Server):
            self.servers.pop(member.name, None)
            if self.state not in ("done", "failed"):
                self.go_back(f"{member.name} is lost: {how}")
        else:
            self.say(f"{member.name} is lost: {how}; its tasks go to others")
            self._drop_worker(member.name)

    def _drop_worker(self, name: str) -> None:
        """Hand a worker's tasks to others."""
        if self.workers.pop(name, None) is not None and self.state in ("running", "saving"):
            self.work.drop(name)

    # -- generations ---------------------------------------------------------------------------------------------------

    def go_back(self, reason: str) -> None:
        """Return to the last checkpoint as a whole: no mixture of old and new shards."""
        self._past = None
        self._checkpoint = checkpoints.newest(self.folder)
        step = checkpoints.RunCheckpoint.read(self._checkpoint).step
        self.say(f"{reason}; the run goes back to the checkpoint of step {step}")
        self.state, self._since_s = "going back", time.monotonic()
        self._stop_after_save = self._asked_to_stop
        self.generation += 1
        self._saving.drop()
        for server in self.servers.values():
            server.is_ready = False
        for worker in self.workers.values():
            self.send(worker, Reset(generation=self.generation))
        self._begin_when_servers_are_there()

    def restart_generation(self, reason: str) -> None:
        """Throw away the step under way and go on with the servers as they are."""
        self.say(reason)
        self._past = self.work.past()
        self.generation += 1
        self.state, self._since_s = "going back", time.monotonic()
        self._stop_after_save = self._asked_to_stop
        self._saving.drop()
        for worker in self.workers.values():
            self.send(worker, Reset(generation=self.generation))
        for server in self.servers.values():
            server.is_ready = False
            self.send(server, Adopt(generation=self.generation))

    def _begin_when_servers_are_there(self) -> None:
        """Once every server said hello, have all of them in one state: that of the journal, or of the checkpoint."""
        if len(self.servers) < self.blueprint.num_servers:
            return
        if self._past is not None and self._adopts(self._past):
            self.say(f"the coordinator came back at step {self._version_of(self._past)}")
            self.generation += 1
            if self._past.commit is not None:
                self._commit_again(self._past)
            self.send_servers(Adopt(generation=self.generation))
        else:
            self._past = None
            manifest = checkpoints.RunCheckpoint.read(self._checkpoint)
            self.generation += 1
            self.send_servers(
                Load(generation=self.generation, step=manifest.step, folder=str(self._checkpoint.absolute()))
            )

    def _version_of(self, past: Past) -> int:
        """Return how many steps servers have applied, by the journal."""
        return past.commit.step + 1 if past.commit is not None else past.start.step

    def _adopts(self, past: Past) -> bool:
        """Say whether the servers hold what the journal says, or are one commit away from it.

        A ring goes back to the checkpoint: only the coordinator that is gone knew who holds which dense parameters.
        """
        if self.blueprint.run.training.dense == "ring":
            return False
        if self.blueprint.run.training.mode != "sync":
            return all(server.generation == past.start.generation for server in self.servers.values())
        version = self._version_of(past)
        allowed = {version, version - 1} if past.commit is not None else {version}
        return all(
            server.version in allowed and server.generation == past.start.generation for server in self.servers.values()
        )

    def _commit_again(self, past: Past) -> None:
        """Tell servers of the last commit, which some may not have heard of; the others will not apply it again."""
        line = past.commit
        if line is not None:
            self.send_servers(
                Commit(
                    generation=past.start.generation,
                    step=line.step,
                    scale=line.scale,
                    dense_scale=line.dense_scale,
                    factor=line.factor,
                )
            )

    def _server_ready(self, server: Server, message: Ready) -> None:
        """Go on once every server is of this generation."""
        server.version, server.generation = message.version, message.generation
        server.is_ready = message.generation == self.generation
        if self.state not in ("starting", "going back") or not all(each.is_ready for each in self.servers.values()):
            return
        if len(self.servers) < self.blueprint.num_servers:
            return
        self._begin_generation()

    def _begin_generation(self) -> None:
        """Start handing out work from where the servers are."""
        if self._past is not None:
            self.work.go_on(self._past)
        else:
            manifest = checkpoints.RunCheckpoint.read(self._checkpoint)
            self.work.start(manifest)
            self.samples_done = manifest.position - sum(last - first for first, last in manifest.gaps)
        self._past = None
        start: Start = self.work.as_start()
        self.journal.write(start=start)
        self.state, self._since_s = "running", time.monotonic()
        for worker in self.workers.values():
            worker.held.clear()
            worker.at_step = self.work.step - 1
            self.send(worker, Reset(generation=self.generation))
        self.work.begin()
        if self._asked_to_stop and self.state == "running":
            self._saving.want()

    # -- ends ----------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Keep the last state, then end."""
        self.state = "saving"
        self._stop_after_save = True
        if checkpoints.RunCheckpoint.read(self._checkpoint).step == self.work.step and not self._saving.is_wanted:
            self.saved(self._checkpoint, self.work.step)  # nothing was done since
        else:
            self._saving.want()

    def saved(self, folder: Path, step: int) -> None:
        """Note a checkpoint that is whole."""
        self._checkpoint = folder
        self.say(f"checkpoint of step {step} is kept")
        checkpoints.drop_old(self.folder, folder, self.blueprint.run.checkpoint.keep)
        if self._stop_after_save and not self._saving.is_wanted:
            self._write_metrics(time.monotonic())
            self._end("done")
            self._write_summary()

    def checkpoint_due(self, step: int) -> bool:
        """Say whether a checkpoint is due after a step."""
        return self._saving.due(step)

    def cut(self) -> None:
        """Cut a checkpoint now."""
        self._saving.cut()

    @property
    def extra_savers(self) -> int:
        """Return how many beside the servers write parts of a checkpoint: one member of a ring."""
        return 1 if self.blueprint.run.training.dense == "ring" else 0

    @property
    def checkpoint_folder(self) -> str:
        """Return where the newest checkpoint lies."""
        return str(self._checkpoint.absolute())

    @property
    def stops_after_save(self) -> bool:
        """Say whether the next checkpoint is the last."""
        return self._stop_after_save

    def fail(self, error: str, hint: str) -> None:
        """End the run with an error."""
        if self.state in ("done", "failed"):
            return
        self._failure = (error, hint)
        self.process.log(f"error: {error}")
        self._end("failed")

    def _end(self, state: str) -> None:
        """Have everyone stop."""
        self.state = state
        self._ended_s = time.monotonic()
        for member in [*self.workers.values(), *self.servers.values()]:
            self.send(member, Stop(reason=state))

    def _write_summary(self) -> None:
        """Write what the run came to."""
        rows = [stats.rows for stats in self._server_stats.values()]
        summary = {
            "step": self.work.step,
            "samples": self.samples_done,
            "seconds": round(time.time() - self._begun_s, 3),
            "loss": self.metrics.loss,
            "auc": self.metrics.auc,
            "workers": self.metrics.summary(),
            "servers": {
                name: {"rows": stats.rows, "pushed_keys": stats.pushed_keys, "busy_s": round(stats.busy_s, 3)}
                for name, stats in sorted(self._server_stats.items())
            },
            "imbalance": round(max(rows) * len(rows) / sum(rows), 4) if rows and sum(rows) else 1.0,
            "checkpoint": self._checkpoint.name,
        }
        (self.folder / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1))

    def say(self, event: str) -> None:
        """Tell the launcher and the log what happened."""
        self.process.log(event)
        self._events.append(event)

    def _report(self) -> Report:
        """Return how the run goes."""
        events, self._events = tuple(self._events), []
        return Report(
            state=self.state,  # type: ignore[arg-type]
            generation=self.generation,
            step=self.work.step,
            epoch=min(self.work.position // self.blueprint.samples, self.blueprint.run.training.epochs - 1),
            samples=self.samples_done,
            total_samples=self.blueprint.samples * self.blueprint.run.training.epochs,
            samples_per_s=self.metrics.samples_per_s,
            loss=self.metrics.loss,
            auc=self.metrics.auc,
            checkpoint_step=int(self._checkpoint.name.partition("-")[2]),
            workers=tuple(
                self.metrics.worker_status(name, "working" if name in self.workers else "away")
                for name in sorted({*self._settings, *self.workers})
            ),
            servers=tuple(sorted(self.servers)),
            events=events,
            lost=tuple(self._lost.items()),
            error=self._failure[0],
            hint=self._failure[1],
        )


def coordinate(process: Process) -> None:
    """Run the coordinator."""
    Coordinator(process).run()
