"""The process of the coordinator: sockets, clock, journal and files around the state machine, which decides."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np

from dovetail.models.schedules import make_schedule
from dovetail.runtime.clocks import AwakeClock
from dovetail.runtime.coordinator.checkpoints import FolderCheckpointStore
from dovetail.runtime.coordinator.decisions import Counted, Decision, Say, Send
from dovetail.runtime.coordinator.journal import Journal
from dovetail.runtime.coordinator.metrics import EVERY_S, Links, Metrics, server_summary
from dovetail.runtime.coordinator.state_machine import RunState, RunStateMachine
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import RunSummary, StageSummary
from dovetail.runtime.messages import Died, Done, Hello, Report, SaveNow, ServerStats, StageSpans, Status, WhoAreYou
from dovetail.runtime.messages.compression import Tuned
from dovetail.runtime.process import Process
from dovetail.runtime.sealed import checksum_of_value
from dovetail.transport import Envelope

MOST_KEPT = 1000
"""Events that are kept for those who ask late."""


class Events:
    """Numbered from 0; asking for them changes nothing."""

    def __init__(self) -> None:
        """Start without any."""
        self._texts: deque[str] = deque(maxlen=MOST_KEPT)
        self.next_number = 0

    def add(self, text: str) -> None:
        """Note what happened."""
        self._texts.append(text)
        self.next_number += 1

    def since(self, number: int) -> tuple[str, ...]:
        """Return the events from a number on, as far as they are kept.

        Whoever asks for one that is still to come heard of another coordinator's, and gets all.
        """
        first = self.next_number - len(self._texts)
        number = number if number <= self.next_number else 0
        return tuple(self._texts)[max(0, number - first) :]


LOOK_S = 0.05
"""How long the loop waits for a message at most."""
TICK_S = 0.2
"""How often it is seen what is due by time."""
STAY_S = 3.0
"""How long a coordinator stays to tell those who watch how the run ended."""
WATCHES_S = 5.0
"""Whoever asked within this time watches the run."""


class CoordinatorLoop:
    """Brings messages and the time to the machine, and carries out what it decides."""

    def __init__(self, process: Process) -> None:
        """Listen, and see in the journal whether this run was under way."""
        self._process, self._blueprint, self._folder = process, process.blueprint, process.folder
        spec = self._blueprint.coordinator
        self._listener = process.listen([spec.address, spec.local_address])
        self._senders = process.senders()
        self._journal = Journal(self._folder, root=checksum_of_value(self._blueprint))
        self._metrics = Metrics(self._folder, timeline=self._blueprint.timeline, metrics=self._blueprint.metrics)
        self._events = Events()
        self._clock = AwakeClock()
        fingerprint = Fingerprint.of(self._blueprint)
        keep = self._blueprint.run.checkpoint.keep
        store = FolderCheckpointStore(
            self._folder, keep=keep, fingerprint=fingerprint, tell=self._say, statistics=self._metrics.statistics
        )
        self._machine = RunStateMachine(
            self._blueprint, store, self._journal.past(), self._clock.now(), place=str(self._folder)
        )
        schedule = self._blueprint.run.optimizer.schedule
        self._schedule = make_schedule(schedule.name, **schedule.settings())
        self._begun_s = time.time()
        self._ticked_s = self._turned_s = 0.0
        self._ended_s: float | None = None
        self._watchers: dict[bytes, float] = {}
        """When each of those who watch asked last; after the end, those who do not know of it yet."""
        self._server_stats: dict[str, ServerStats] = {}
        self._links = Links(self._folder)

    def run(self) -> None:
        """Serve until the run is over and everyone who watches knows."""
        try:
            while not self._may_leave():
                now_s = self._clock.now()
                envelope = self._listener.receive(min(LOOK_S, max(0.0, self._machine.work.due_s() - now_s)))
                while envelope is not None:
                    self._receive(envelope)
                    envelope = self._listener.receive(0)
                self._tick()
        finally:
            self._listener.close()
            self._metrics.close()
            self._journal.close()

    def _may_leave(self) -> bool:
        """Say whether the run is over, and everyone knows or has had the time to ask."""
        if self._ended_s is None:
            return False
        return not self._watchers or self._clock.now() - self._ended_s > STAY_S

    def _tick(self) -> None:
        """Do what is due by time."""
        now_s = self._clock.now()
        if self._machine.work.due_s() <= now_s:
            self._machine.settle(now_s)
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self._machine.tick(now_s)
        self._carry_out()
        if now_s - self._turned_s >= EVERY_S:
            self._turned_s = now_s
            if self._machine.state.is_working:
                self._write_metrics(now_s)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _receive(self, envelope: Envelope) -> None:
        """Bring a message to the machine."""
        message: Any = envelope.message
        now_s = self._clock.now()
        reason = self._senders.why_not_to_coordinator(envelope.owner, message) or why_not_counts(envelope)
        if reason is not None:
            self._listener.refuse(envelope, reason)
            return
        if isinstance(message, Hello):
            self._machine.hello(envelope.sender, message, now_s)
        elif isinstance(message, Status):
            self._answer(envelope, message)
        elif isinstance(message, Died):
            self._machine.died(message, now_s)
        elif isinstance(message, SaveNow):
            self._machine.save_now(message, now_s)
        else:
            member = self._machine.roster.sender(envelope.sender)
            if member is None:
                self._listener.send(envelope.sender, WhoAreYou())
            elif isinstance(message, ServerStats):
                self._server_stats[message.name] = message
            elif isinstance(message, Tuned):
                self._say(self._links.add(message))
            elif isinstance(message, StageSpans):
                member.hear(now_s)
                self._metrics.add_spans(message.name, message.spans)
            else:
                if isinstance(message, Done) and message.generation == self._machine.roster.generation:
                    self._metrics.add_task(message, envelope.arrays)
                self._machine.received(member, message, now_s)
        self._carry_out()

    def _answer(self, envelope: Envelope, status: Status) -> None:
        """Tell someone how the run goes."""
        self._listener.reply(envelope, self._report(status.since))
        if self._ended_s is None:
            self._watchers[envelope.sender] = self._clock.now()
        else:
            self._watchers.pop(envelope.sender, None)

    def _carry_out(self) -> None:
        """Do what was decided, in order."""
        for decision in self._machine.decisions.take():
            self._do(decision)
        if self._machine.state.is_over and self._ended_s is None:
            self._end()

    def _do(self, decision: Decision) -> None:
        """Carry out one decision."""
        if isinstance(decision, Send):
            self._listener.send(decision.to, decision.message)
        elif isinstance(decision, Say):
            self._say(decision.text)
        elif isinstance(decision, Counted):
            self._metrics.add_step(decision)
        else:
            self._journal.write(decision.line)

    def _say(self, text: str) -> None:
        """Tell people what happened: in the log, and whoever watches."""
        self._process.log(text)
        self._events.add(text)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Write what the run came to; stay for those who watch."""
        now_s = self._ended_s = self._clock.now()
        self._watchers = {who: asked_s for who, asked_s in self._watchers.items() if now_s - asked_s < WATCHES_S}
        if self._machine.state is RunState.FAILED:
            self._process.log(f"error: {self._machine.failure[0]}")
            return
        self._write_metrics(now_s)
        with suppress(OSError):
            self._summary().write(self._folder)

    def _summary(self) -> RunSummary:
        """Return what the run came to."""
        work, rows = self._machine.work, [stats.rows for stats in self._server_stats.values()]
        return RunSummary(
            step=work.step,
            samples=work.samples_done,
            seconds=round(time.time() - self._begun_s, 3),
            loss=self._metrics.loss,
            auc=self._metrics.auc,
            metrics=dict(self._metrics.values),
            workers=self._metrics.summary(),
            servers={name: server_summary(stats) for name, stats in sorted(self._server_stats.items())},
            imbalance=round(max(rows) * len(rows) / sum(rows), 4) if rows and sum(rows) else 1.0,
            checkpoint=self._machine.kept.folder.name,
            stages=self._stages(),
            links=self._links.summary,
        )

    def _stages(self) -> tuple[StageSummary, ...]:
        """Return what the stages of the run took, where it has any."""
        run = self._blueprint.run
        return tuple(
            StageSummary(
                first_layer=stage.first_layer,
                last_layer=stage.last_layer,
                resource=stage.resource,
                workers=len(run.workers_of(number)),
                samples=self._metrics.staged_samples,
                busy_s=round(busy_s, 3),
            )
            for number, (stage, busy_s) in enumerate(zip(run.stages, self._metrics.stages_s, strict=False))
        )

    # -- for those who watch -------------------------------------------------------------------------------------------

    def _epoch(self) -> int:
        """Return the epoch that work is in."""
        return self._machine.work.position // self._blueprint.samples

    def _learning_rate(self) -> float:
        """Return the rate of dense parameters at this step."""
        rate = self._blueprint.optimizer.get("learning_rate", 0.0)
        return float(rate) * self._schedule(self._machine.work.step)

    def _write_metrics(self, now_s: float) -> None:
        """Write a line of figures."""
        facts = {
            "time_s": round(time.time() - self._begun_s, 3),
            "unix_s": round(time.time(), 3),
            "generation": self._machine.roster.generation,
            "step": self._machine.work.step,
            "epoch": self._epoch(),
            "samples": self._machine.work.samples_done,
            "total_samples": self._blueprint.samples * self._blueprint.run.training.epochs,
            "learning_rate": round(self._learning_rate(), 12),
        }
        self._metrics.turn(now_s, facts, self._server_stats)

    def _report(self, since: int) -> Report:
        """Return how the run goes, with what happened since an event."""
        machine, run = self._machine, self._blueprint.run
        roster = machine.roster
        return Report(
            state=machine.state.value,
            generation=roster.generation,
            step=machine.work.step,
            epoch=min(self._epoch(), run.training.epochs - 1),
            samples=machine.work.samples_done,
            total_samples=self._blueprint.samples * run.training.epochs,
            samples_per_s=self._metrics.samples_per_s,
            loss=self._metrics.loss,
            auc=self._metrics.auc,
            checkpoint_step=machine.kept.manifest.step,
            workers=tuple(
                self._metrics.worker_status(
                    name, "working" if name in roster.workers else "away", self._links.bits_of(name)
                )
                for name in sorted({*roster.settings, *roster.workers})
            ),
            servers=tuple(sorted(roster.servers)),
            stage_workers=tuple(sorted(roster.stage_workers)),
            events=self._events.since(since),
            next_event=self._events.next_number,
            lost=tuple(machine.lost.items()),
            error=machine.failure[0],
            hint=machine.failure[1],
            metrics=tuple(self._metrics.values.items()),
            learning_rate=self._learning_rate(),
            gradient_norm=self._metrics.gradient_norm,
            stages_s=tuple(self._metrics.stages_s),
            staged_samples=self._metrics.staged_samples,
        )


def why_not_counts(envelope: Envelope) -> str | None:
    """Return why the arrays of an envelope are not what comes with its message, or None where they are."""
    expected = "two arrays of counts, one of sums and one of statistics, or none"
    expected = expected if isinstance(envelope.message, Done) else "none"
    if not envelope.arrays:
        return None
    if isinstance(envelope.message, Done) and len(envelope.arrays) == 4:
        one, other, sums, statistics = envelope.arrays
        are_counts = one.ndim == 1 and one.shape == other.shape and one.dtype == other.dtype == np.int64
        are_sums = sums.ndim == 2 and sums.shape[1] == 2 and statistics.ndim == 1
        if are_counts and are_sums and sums.dtype == statistics.dtype == np.float32:
            return None
    shapes = ", ".join(f"{array.dtype} {array.shape}" for array in envelope.arrays[:4])
    return f"{type(envelope.message).__name__} came with the arrays {shapes}, expected {expected}"


def coordinate(process: Process) -> None:
    """Run the coordinator."""
    CoordinatorLoop(process).run()
