"""The process of the coordinator: sockets, clock, journal and files around the state machine, which decides."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from dovetail.runtime.clocks import AwakeClock
from dovetail.runtime.coordinator.checkpoints import FolderCheckpointStore
from dovetail.runtime.coordinator.decisions import Decision, Say, Send
from dovetail.runtime.coordinator.journal import Journal, JournalLine
from dovetail.runtime.coordinator.state_machine import RunState, RunStateMachine
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.figures import EVERY_S, Counted, LinkWidths, RunFigures, Standing
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.messages import Died, Done, Hello, Report, SaveNow, ServerStats, StageSpans, Status, WhoAreYou
from dovetail.runtime.messages.compression import Tuned
from dovetail.runtime.process import Process
from dovetail.runtime.sealed import checksum_of_value
from dovetail.runtime.spending import SpendingRecord, privacy_summary
from dovetail.transport import Envelope

MOST_KEPT = 1000
"""Events that are kept for those who ask late."""


class Events:
    """Numbered from 0; asking for them changes nothing."""

    def __init__(self) -> None:
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
UNTOLD_S = 30.0
"""The same while nobody knows: a short run may be over before its launcher, on a busy machine, has asked even once."""
WATCHES_S = 5.0
"""Whoever asked within this time watches the run."""


class CoordinatorLoop:
    """Brings messages and the time to the state machine, and carries out what it decides."""

    def __init__(self, process: Process) -> None:
        """Listen, and see in the journal whether this run was under way."""
        self._process, self._blueprint, self._folder = process, process.blueprint, process.folder
        spec = self._blueprint.coordinator
        self._listener = process.listen([spec.address, spec.local_address])
        self._senders = process.senders()
        self._journal = Journal(self._folder, root=checksum_of_value(self._blueprint))
        self._figures = RunFigures(self._folder, self._blueprint, timeline=self._blueprint.timeline)
        self._events = Events()
        self._clock = AwakeClock()
        fingerprint = Fingerprint.of(self._blueprint)
        keep = self._blueprint.run.checkpoint.keep
        store = FolderCheckpointStore(
            self._folder,
            keep=keep,
            fingerprint=fingerprint,
            tell=self._say,
            statistics=self._figures.statistics,
            spending_at=lambda step: None if self._record is None else self._record.at(step),
        )
        self._machine = RunStateMachine(
            self._blueprint, store, self._journal.past(), self._clock.now(), place=str(self._folder)
        )
        self._ticked_s = self._turned_s = 0.0
        self._ended_s: float | None = None
        self._watchers: dict[bytes, float] = {}
        """When each of those who watch asked last; after the end, those who do not know of it yet."""
        self._told_the_end = False
        self._server_stats: dict[str, ServerStats] = {}
        self._links = LinkWidths(self._folder)
        private = self._blueprint.private
        self._record = None if private is None else SpendingRecord(self._folder, private)

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
            self._figures.close()
            self._journal.close()

    def _may_leave(self) -> bool:
        """Say whether the run is over, and everyone knows or has had the time to ask."""
        if self._ended_s is None:
            return False
        stayed_s = self._clock.now() - self._ended_s
        return stayed_s > UNTOLD_S or (self._told_the_end and (not self._watchers or stayed_s > STAY_S))

    def _tick(self) -> None:
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
                self._figures.turn(now_s, self._standing(), self._server_stats)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _receive(self, envelope: Envelope) -> None:
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
                self._figures.add_spans(message.name, message.spans)
            else:
                if isinstance(message, Done) and message.generation == self._machine.roster.generation:
                    self._figures.add_task(message, envelope.arrays)
                self._machine.received(member, message, now_s)
        self._carry_out()

    def _answer(self, envelope: Envelope, status: Status) -> None:
        """Tell someone how the run goes."""
        self._listener.reply(envelope, self._report(status.since))
        if self._ended_s is None:
            self._watchers[envelope.sender] = self._clock.now()
        else:
            self._watchers.pop(envelope.sender, None)
            self._told_the_end = True

    def _carry_out(self) -> None:
        """Do what was decided, in order."""
        for decision in self._machine.decisions.take():
            try:
                self._do(decision)
            except (OSError, TrainingError) as problem:  # of the record of what is spent: the step must not count
                hint = getattr(problem, "hint", "check the disk, and go on with --resume")
                self._machine.fail(f"what the run spends cannot be noted: {problem}", hint)
                break
        if self._machine.state.is_over and self._ended_s is None:
            self._end()

    def _do(self, decision: Decision) -> None:
        if isinstance(decision, Send):
            self._listener.send(decision.to, decision.message)
        elif isinstance(decision, Say):
            self._say(decision.text)
        elif isinstance(decision, Counted):
            self._figures.add_step(decision)
        else:
            self._write(decision.line)

    def _write(self, line: JournalLine) -> None:
        """Write a line of the journal, and before it that a private step is spent."""
        if line.commit is not None and self._record is not None:
            self._record.begin(line.commit.step)
        self._journal.write(line)

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
        self._figures.turn(now_s, self._standing(), self._server_stats)
        folder, privacy = self._machine.kept.folder, None
        if self._record is not None:
            self._record.end(self._machine.work.step)
            privacy = privacy_summary(self._blueprint, self._record.spending, self._machine.work.step)
            self._say(privacy.words)
        self._figures.write_summary(
            self._standing(), folder, servers=self._server_stats, links=self._links.summary, privacy=privacy
        )

    # -- for those who watch -------------------------------------------------------------------------------------------

    def _standing(self) -> Standing:
        work, generation = self._machine.work, self._machine.roster.generation
        return Standing(step=work.step, position=work.position, samples=work.samples_done, generation=generation)

    def _report(self, since: int) -> Report:
        """Return how the run goes, with what happened since an event."""
        machine, figures, roster = self._machine, self._figures, self._machine.roster
        return figures.report(
            machine.state.value,
            self._standing(),
            checkpoint_step=machine.kept.manifest.step,
            workers=[
                figures.worker_status(name, "working" if name in roster.workers else "away", self._links.bits_of(name))
                for name in sorted({*roster.settings, *roster.workers})
            ],
            events=self._events.since(since),
            servers=tuple(sorted(roster.servers)),
            stage_workers=tuple(sorted(roster.stage_workers)),
            next_event=self._events.next_number,
            lost=tuple(machine.lost.items()),
            error=machine.failure[0],
            hint=machine.failure[1],
            stages_s=tuple(figures.stages_s),
            staged_samples=figures.staged_samples,
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
