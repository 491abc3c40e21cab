"""The process of a parameter server: messages in, answers out, one thread over one shard.

Its part of a checkpoint is fixed at once, and written while the server goes on.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from dovetail.errors import DovetailError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import STATISTICS, checksums_in, table_folder
from dovetail.runtime.clocks import AwakeClock
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import rows_of
from dovetail.runtime.messages import (
    AddedUp,
    AddUp,
    Adopt,
    Agree,
    Agreed,
    Alive,
    Commit,
    Committed,
    CutLog,
    Failed,
    Forgotten,
    Gone,
    Hello,
    Load,
    MaskedPush,
    Norm,
    NormIs,
    Pull,
    Push,
    Pushed,
    Ready,
    Refresh,
    Residual,
    Save,
    SaveBegun,
    Saved,
    SaveFailed,
    ServerStats,
    Stale,
    Stop,
    WhoAreYou,
)
from dovetail.runtime.noise import noise_key
from dovetail.runtime.process import HEARTBEAT_S, Process
from dovetail.runtime.server.answers import AnswerWire, Parked, Waiting
from dovetail.runtime.server.masked_sums import MaskedSums
from dovetail.runtime.server.norm_sums import Answers
from dovetail.runtime.server.redo.log import RedoLog
from dovetail.runtime.server.redo.safekeeping import Safekeeping
from dovetail.runtime.server.requests import accepted, gradients_in, residual_in
from dovetail.runtime.server.shard import Shard
from dovetail.runtime.server.site_shard import SiteShard, rest
from dovetail.transport import Envelope, Listener, PeerLost, Refused


class PartSaving:
    """The part under way, where there is one."""

    def __init__(self, name: str, number: int, shard: Shard, redo: RedoLog) -> None:
        """Start without any; `number` is the server's."""
        self._name, self._number, self._shard, self._redo = name, number, shard, redo
        self._under_way: tuple[Save, list[Future[Any]]] | None = None
        self._begun: tuple[int, int] | None = None
        """Generation and number of the part that was begun last."""

    @property
    def is_under_way(self) -> bool:
        """Say whether a part is being written."""
        return self._under_way is not None

    def begin(self, message: Save) -> SaveBegun | SaveFailed:
        """Fix what the part holds and begin to write it; it must be of the step that the coordinator means."""
        begun = SaveBegun(name=self._name, generation=message.generation, number=message.number)
        if self._begun == (message.generation, message.number):
            return begun  # it was told twice
        self.drop()
        try:
            if message.step != self._shard.version:
                raise TrainingError(
                    f"the checkpoint is of step {message.step}, and {self._name} holds {self._shard.version}",
                    hint="a bug: report it",
                )
            self._shard.forget_tasks(below=message.next_task)
            self._under_way = (message, self._shard.save(Path(message.folder), message.number))
        except (DovetailError, OSError) as error:
            return self._failed(message, error)
        self._begun = (message.generation, message.number)
        self._redo.at_checkpoint(message.next_task)
        return begun

    def drop(self) -> None:
        """Wait for a part that nobody wants any more."""
        if self._under_way is not None:
            for future in self._under_way[1]:
                future.exception()
            self._under_way = None

    def finished(self) -> Saved | SaveFailed | None:
        """Return, once, what became of the part; None while it is being written."""
        if self._under_way is None or not all(future.done() for future in self._under_way[1]):
            return None
        message, futures = self._under_way
        self._under_way = None
        try:
            for future in futures:
                future.result()
            folder = Path(message.folder)
            files = checksums_in(folder, only=f"dense-{self._number}.safetensors")
            files |= checksums_in(folder, only=f"sites-{self._number}.safetensors")
            if self._shard.norms is not None:
                files |= checksums_in(folder, only=STATISTICS)
            for position in range(len(self._shard.tables)):
                files |= checksums_in(folder, only=f"{table_folder(position, self._number)}/**/*")
        except (DovetailError, OSError) as error:
            return self._failed(message, error)
        return Saved(name=self._name, generation=message.generation, number=message.number, files=files)

    def _failed(self, message: Save, error: Exception) -> SaveFailed:
        """Return the report of a part that could not be written; training goes on."""
        hint = error.hint if isinstance(error, DovetailError) else "check the disk"
        generation, number = message.generation, message.number
        return SaveFailed(name=self._name, generation=generation, number=number, error=str(error), hint=hint)


def stats_of(name: str, shard: Shard, redo: RedoLog, busy_s: float) -> ServerStats:
    """Return what a server holds and has done."""
    stats = [table.stats() for table in shard.tables]
    return ServerStats(
        name=name,
        rows=sum(each.num_rows for each in stats),
        memory_bytes=sum(each.memory_bytes for each in stats) + 4 * shard.values.nbytes,
        pulled_keys=shard.pulled_keys,
        pushed_keys=shard.pushed_keys,
        busy_s=busy_s,
        log_s=redo.cost.seconds,
        log_bytes=redo.cost.num_bytes,
    )


def _masked_sums(blueprint: Blueprint, number: int) -> MaskedSums | None:
    """Return what adds up gradients that come under masks, where they do."""
    if blueprint.run.privacy.aggregation != "masked":
        return None
    part = blueprint.dense_slice(number)
    widths = [table.width for table in blueprint.tables]
    return MaskedSums(widths, part.stop - part.start, reach=blueprint.mask_reach)


class ServerLoop:
    """One server: answers workers, and does what the coordinator says."""

    def __init__(self, process: Process, number: int) -> None:
        """Listen, and say hello to the coordinator."""
        blueprint: Blueprint = process.blueprint
        self._process, self._number = process, number
        self._name = process.name
        self._sync = blueprint.run.training.mode == "sync"
        self._scale = 1.0 / blueprint.batch if blueprint.run.training.reduction == "mean" else 1.0
        spec = blueprint.servers[number]
        cold = blueprint.run.servers.folder
        rows = Path(cold) / process.name if cold is not None else rows_of(process.folder, process.name)
        self._site = SiteShard(process, number, rows) if blueprint.run.sites else None
        self._shard = self._site or Shard(blueprint, number, rows, noise_key=noise_key(process.folder, blueprint))
        self._wire = AnswerWire(self._shard)
        self._listener: Listener = process.listen([spec.address, spec.local_address])
        self._coordinator = process.call_coordinator()
        self._senders = process.senders()
        self._safe = Safekeeping(process, number, self._shard, self._listener, self._coordinator)
        self._redo = self._safe.log
        self._generation = 0
        self._era = -1
        """The generation that took up the checkpoint from which this state comes."""
        self._waits_in = -1
        """The generation of sums from a redo log that wait to be committed; nobody is served in it any more."""
        self._word = ""
        self._parked = Parked(self._shard, self._from_worker, reads_ahead=self._site is None)
        self._masked = _masked_sums(blueprint, number)
        self._saving = PartSaving(self._name, number, self._shard, self._redo)
        self._square = math.nan
        self._busy_s = self._last_beat_s = 0.0
        self._clock = AwakeClock()
        self._heard_s = self._clock.now()
        self._stopped = False

    def run(self) -> None:
        """Serve until told to stop."""
        poller = zmq.Poller()
        for socket in (self._listener.socket, self._coordinator.socket, *self._safe.sockets):
            poller.register(socket, zmq.POLLIN)
        back = self._safe.come_back()
        self._era, self._waits_in, self._word = back.era, back.generation, back.word
        self._say_hello()
        try:
            while not self._stopped:
                is_idle = self._shard.is_settled and self._parked.is_read
                poller.poll(0 if not is_idle else 20 if self._saving.is_under_way else rest(self._site))
                self._beat()
                # The coordinator first: a commit answers workers that wait.
                while (envelope := self._coordinator.receive(0)) is not None:
                    self._heard_s = self._clock.now()
                    self._from_coordinator(envelope.message)
                for _ in range(16):
                    if (envelope := self._listener.receive(0)) is None:
                        break
                    start_s = time.perf_counter()
                    self._from_worker(envelope)
                    self._busy_s += time.perf_counter() - start_s
                if not self._shard.is_settled:
                    self._shard.settle_some()
                self._parked.read_one()
                self._safe.go_on()
                if self._site is not None and self._site.go_on():
                    self._answer_parked()
                if self._site is not None and (message := self._site.due_commit()) is not None:
                    self._commit(message)
                self._report_saving()
                self._process.check_coordinator(self._clock.now() - self._heard_s)
        except (DovetailError, OSError) as problem:
            hint = problem.hint if isinstance(problem, DovetailError) else "check the disk"
            self._coordinator.send(Failed(name=self._name, error=str(problem), hint=hint))
            raise
        finally:
            for thing in (self._safe, self._shard, self._listener, self._coordinator):
                thing.close()

    def _say_hello(self) -> None:
        """Tell the coordinator what this server holds."""
        self._coordinator.send(
            Hello(
                role="server",
                name=self._name,
                process_id=self._process.process_id,
                generation=max(self._generation, self._waits_in),
                era=self._era,
                word=self._word,
                version=self._shard.version if self._era >= 0 else -1,
            )
        )

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_beat_s < HEARTBEAT_S:
            return
        self._last_beat_s = now_s
        with suppress(PeerLost):  # the coordinator is away, and its queue full: it will hear of us when it is back
            self._coordinator.send(Alive(name=self._name))
            self._coordinator.send(stats_of(self._name, self._shard, self._redo, self._busy_s))
            for news in () if self._site is None else self._site.news(self._name, self._generation):
                self._coordinator.send(news)
            if (note := self._redo.note(self._name)) is not None:
                self._coordinator.send(note)

    def _report_saving(self) -> None:
        """Tell the coordinator when this server's part of a checkpoint is on disk."""
        if (report := self._saving.finished()) is not None:
            for last in (stats_of(self._name, self._shard, self._redo, self._busy_s), report):
                self._coordinator.send(last)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def _from_coordinator(self, message: object) -> None:
        if isinstance(message, Commit):
            self._commit(message)
        elif isinstance(message, Norm):
            square, generation = self._shard.norm_square(), message.generation
            self._coordinator.send(NormIs(name=self._name, generation=generation, step=message.step, square=square))
        elif isinstance(message, Load | Adopt) and message.generation == self._generation:
            self._become(message.generation)  # it was asked twice
        elif isinstance(message, Load):
            self._saving.drop()
            self._shard.load(Path(message.folder))
            self._era = message.generation
            self._redo.begin(self._era, Path(message.folder))
            self._become(message.generation)
        elif isinstance(message, Adopt):
            self._shard.discard()
            self._redo.discarded()
            self._become(message.generation)
        elif isinstance(message, Save) and message.generation == self._generation:
            self._coordinator.send(self._saving.begin(message))
        elif isinstance(message, CutLog):
            self._redo.kept(message.step)
            if self._site is not None:
                self._site.is_kept(message.step)
        elif isinstance(message, Gone):
            self._wire.forget(message.worker)
        elif isinstance(message, WhoAreYou):
            self._say_hello()
        elif isinstance(message, Stop):
            self._stopped = True
            self._safe.end()

    def _become(self, generation: int) -> None:
        """Go on as a generation: whoever waits for an older one is told."""
        self._generation, self._waits_in, self._word = generation, -1, ""
        if self._masked is not None:
            self._masked.discard()
        for waiting in self._parked.take():
            self._listener.reply(waiting.envelope, Stale(generation=generation))
        if self._site is None or not self._site.is_over_held:
            version = self._shard.version
            self._coordinator.send(Ready(name=self._name, generation=generation, version=version, era=self._era))

    def _commit(self, message: Commit) -> None:
        """Apply a step, once, and answer those who wait for it; one of another generation is not the one we hold."""
        if message.generation not in (self._generation, self._waits_in):
            return
        if message.step == self._shard.version:
            start_s = time.perf_counter()
            self._redo.commit(message)
            self._square = self._shard.norm_square() if self._shard.keeps_dense else math.nan
            self._shard.commit(
                scale=message.scale,
                dense_scale=message.dense_scale,
                factor=message.factor,
                after_slice=self._parked.after_slice if self._shard.sliced else None,
            )
            self._busy_s += time.perf_counter() - start_s
            self._answer_parked()
        if self._site is not None and self._site.puts_off(message):
            return
        told = Committed(name=self._name, generation=message.generation, step=message.step, square=self._square)
        self._safe.tell(told)

    def _answer_parked(self) -> None:
        """Answer those who wait, where what they wait for is here."""
        for waiting in self._parked.take():
            self._from_worker(waiting.envelope, waiting)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _from_worker(self, envelope: Envelope, waited: Waiting | None = None) -> None:
        """Answer a worker, who may have `waited`; a request that makes no sense is its problem, not the run's."""
        message = envelope.message
        reason = self._senders.why_not_to_server(envelope.owner, message)
        if reason is not None:
            self._listener.refuse(envelope, reason)
            return
        if self._safe.handle(envelope):
            return
        if message.generation != self._generation:
            self._listener.reply(envelope, Stale(generation=self._generation))
            return
        try:
            brings = isinstance(message, Push | AddUp | Agree | MaskedPush)
            if self._sync and brings and message.step == self._shard.version + 1:
                self._parked.add(envelope, time.monotonic())  # it was told of the last commit before we were
            elif isinstance(message, Pull | Refresh):
                self._pull(envelope, message, waited or Waiting(envelope, time.monotonic()))
            elif isinstance(message, Residual):
                kept = residual_in(message, envelope.arrays, len(self._shard.values))
                self._redo.take_back(kept, worker=message.worker, checkpoint=message.number)
                self._listener.reply(envelope, Pushed())
            elif isinstance(message, AddUp):
                self._add_up(envelope, message)
            elif self._masked is not None or isinstance(message, Agree | MaskedPush):
                self._add_masked(envelope, message)
            else:
                self._push(envelope, message)
        except (DovetailError, ValueError, TypeError, IndexError) as error:
            self._listener.reply(envelope, Refused(reason=f"{type(error).__name__}: {error}"))

    def _pull(self, envelope: Envelope, message: Pull | Refresh, waited: Waiting) -> None:
        """Send parameters, or keep the request until the step it asks for is applied."""
        is_early = isinstance(message, Pull) and message.early
        has_steps = message.version <= self._shard.version
        if not (has_steps or is_early) or (has_steps and self._site is not None and self._site.is_held):
            self._parked.add(envelope, waited.since_s)
            return
        parked_s = time.monotonic() - waited.since_s
        answer = self._wire.answer(envelope, parked_s, owner=envelope.owner, rows=waited.rows)
        if not self._listener.reply(envelope, *answer):
            self._wire.forget(envelope.owner)

    def _add_up(self, envelope: Envelope, message: AddUp) -> None:
        """Put statistics of a batch norm together; whoever waits for the last part of them is answered with it."""
        norms = self._shard.norms
        if norms is None or message.step != self._shard.version or len(envelope.arrays) != 1:
            raise TrainingError(f"a norm of step {message.step}", hint="a bug: report it")
        bits = envelope.arrays[0]
        if bits.dtype != np.int64 or bits.ndim != 1:
            raise TrainingError(f"sums of a norm are {bits.dtype} {bits.shape}", hint="a bug: report it")
        self._answer_norms(norms.add(message, bits.view(np.float64), envelope))

    def _answer_norms(self, answers: Answers) -> None:
        for envelope, sums in answers:
            if sums is None:
                self._listener.reply(envelope, Refused(reason="the workers' samples do not all pass the same norms"))
            else:
                self._listener.reply(envelope, AddedUp(), [sums.view(np.int64)])

    def _add_masked(self, envelope: Envelope, message: Agree | MaskedPush) -> None:
        """Have workers agree on a step's rows, or add up what one brings; with the last of them, the step is here."""
        masked = self._masked
        if masked is None or not isinstance(message, Agree | MaskedPush) or message.step != self._shard.version:
            how = "not masked" if masked is None else "masked"
            raise TrainingError(
                f"a {type(message).__name__} of step {message.step}, and sums are {how}", hint="a bug: report it"
            )
        if isinstance(message, Agree):
            for waiting, keys in masked.agree(message, envelope.arrays, envelope):
                self._listener.reply(waiting, Agreed(), keys)
            return
        summed = masked.push(message, envelope.arrays[0])
        self._listener.reply(envelope, Pushed())
        if summed is None:
            return
        self._shard.check(summed.part)
        self._shard.push(summed.part)
        positions = sum(each.positions for each in summed.pushes)
        is_whole = self._redo.step_grew(generation=message.generation, positions=positions)
        for number, each in enumerate(summed.pushes):
            loss = 0.0 if number else summed.loss
            self._safe.tell(accepted(each, self._name, loss=loss))
        if is_whole and self._shard.keeps_dense:
            self._shard.norm_square()  # nobody waits for it while the coordinator decides

    def _push(self, envelope: Envelope, message: Push) -> None:
        """Take in gradients; tell the coordinator when a task counts."""
        part = gradients_in(message, envelope.arrays, self._shard.kept, self._shard.exact, len(self._shard.values))
        if part is None:
            self._listener.reply(envelope, Forgotten())
            return
        self._shard.check(part)
        if self._sync:
            late = message.step != self._shard.version or self._shard.counts(message.step, message.task)
            counts = not late and self._shard.push(part)
        else:
            late = self._shard.counts(0, message.task)
            factor = message.factor
            counts = self._shard.apply(part, scale=self._scale, factor=factor, before_apply=self._redo.before_apply)
        self._shard.kept.forget(envelope.owner, message.pulls)
        self._listener.reply(envelope, Pushed(counts=counts or not message.last))
        grew = counts and self._sync
        is_whole = grew and self._redo.step_grew(generation=message.generation, positions=message.positions)
        if self._shard.norms is not None and message.last:
            self._answer_norms(self._shard.norms.pushed(message.task, message.positions))
        if counts or (late and message.last):
            self._safe.tell(accepted(message, self._name, loss=message.loss))
        if is_whole and self._shard.keeps_dense:
            self._shard.norm_square()  # nobody waits for it while the coordinator decides


def serve(process: Process) -> None:
    """Run the server whose name the process has."""
    number = next(position for position, spec in enumerate(process.blueprint.servers) if spec.name == process.name)
    ServerLoop(process, number).run()
