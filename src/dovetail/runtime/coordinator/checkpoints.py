"""Checkpoints of a run: when they are due, how far the one under way is, and the store they lie in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import msgspec

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import CheckpointSchedule, Floats, RunManifest
from dovetail.runtime.clocks import Deadline
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.membership import Roster
from dovetail.runtime.coordinator.work import Pause, Work
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.messages import AskResidual, LogNote, ResidualTold, Save, SaveBegun, Saved, SaveFailed
from dovetail.runtime.spending import Spending

TELL_AGAIN_S = 5.0
"""How long someone may be silent about a checkpoint before it is told again: a connection may have broken."""


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint that is whole."""

    folder: Path
    manifest: RunManifest


class CheckpointStore(Protocol):
    """Where checkpoints lie; every call may raise `OSError`."""

    def newest(self) -> KeptCheckpoint:
        """Return the newest checkpoint that is whole."""
        ...

    def begin(self, step: int, generation: int) -> Path:
        """Return an empty folder to write a checkpoint into."""
        ...

    def publish(self, partial: Path, manifest: RunManifest) -> KeptCheckpoint:
        """Make a checkpoint of what was written."""
        ...

    def forget(self, partial: Path) -> None:
        """Throw away what was written."""
        ...


@dataclass(frozen=True, slots=True)
class NotKept:
    """Why a checkpoint could not be made, and what may help."""

    why: str
    hint: str


class SavingPhase(Enum):
    """How far a checkpoint is."""

    NONE = "none is under way"
    FIXING = "servers are told, and not all of them have fixed what it holds"
    WRITING = "they are writing it"


class Saving:
    """When a checkpoint is wanted, and the parts that are written of the one under way."""

    def __init__(self, blueprint: Blueprint, store: CheckpointStore, roster: Roster, decisions: Decisions) -> None:
        run = blueprint.run
        self._store, self._roster, self._decisions = store, roster, decisions
        self._due = CheckpointSchedule(run.checkpoint, run.validation, blueprint.samples)
        self.is_wanted = False
        self._asks_workers = run.compression.is_wanted and run.training.dense == "ps"
        """Whether workers keep something back, which they tell servers first."""
        self._is_sync = run.training.mode == "sync"
        self._awaited: set[str] = set()
        """The workers that have not told yet."""
        self.ends_run = False
        """Whether the run ends with the checkpoint that is wanted or under way."""
        self.phase = SavingPhase.NONE
        self._generation = 0
        self._number = 0
        self._partial = Path()
        self._begun_s = 0.0
        self._manifest: RunManifest | None = None
        self._num_savers = 0
        self._message: Save | None = None
        self._told_s = 0.0
        self._begun: set[str] = set()
        self._files: dict[str, dict[str, str]] = {}
        self._durations = Deadline(k=20.0, floor_s=60.0, first_s=600.0)

    @property
    def is_due(self) -> bool:
        """Say whether one is wanted and can begin as soon as the work allows."""
        return self.is_wanted and self.phase is SavingPhase.NONE

    @property
    def pause(self) -> Pause:
        """Return which work has to wait."""
        if self.ends_run:
            return Pause.TO_STOP
        return Pause.TO_SAVE if self.is_due or self.phase is SavingPhase.FIXING else Pause.NONE

    @property
    def was_last(self) -> bool:
        """Say of a checkpoint that has come to something whether the run ends with it."""
        return self.ends_run and not self.is_wanted

    def look(self, step: int, now_s: float, position: int) -> None:
        """See whether a checkpoint is due by steps, by time, or for the validation data."""
        if self._due.is_due(step, position, now_s):
            self.is_wanted = True

    def note(self, message: LogNote) -> None:
        """Tell people of a server's redo log; one that gets long is cut by a checkpoint."""
        if message.word:
            self._decisions.say(f"{message.name}: {message.word}")
        if message.wants_checkpoint and self.phase is SavingPhase.NONE:
            self.is_wanted = True

    def begin(self, work: Work, now_s: float) -> NotKept | None:
        """Have everyone write its part of a checkpoint of how things are now."""
        manifest, generation = work.manifest(), self._roster.generation
        self.is_wanted = False
        self._due.begun(manifest.step, manifest.position, now_s)
        self._begun_s = now_s
        self._files, self._begun = {}, set()
        try:
            self._partial = self._store.begin(manifest.step, generation)
        except OSError as error:
            return NotKept(f"the run's folder cannot be written: {error}", "check the disk")
        self._manifest, self._generation, self.phase = manifest, generation, SavingPhase.FIXING
        self._number += 1
        self._num_savers = work.num_savers
        folder = str(self._partial.absolute())
        self._message = Save(
            generation=generation,
            number=self._number,
            step=manifest.step,
            folder=folder,
            next_task=work.next_task,
        )
        self._awaited = set(self._roster.workers) if self._asks_workers else set()
        self._tell(work, now_s)
        return None

    def residual_told(self, message: ResidualTold, work: Work, now_s: float) -> None:
        """Take in that servers know what a worker keeps back; once they know of all, they may write."""
        is_of_this = (message.generation, message.number) == (self._generation, self._number)
        if self.phase is SavingPhase.FIXING and is_of_this and message.name in self._awaited:
            self._awaited.remove(message.name)
            if not self._awaited:
                self._tell(work, now_s)

    def _tell(self, work: Work, now_s: float) -> None:
        """Tell those who have not answered; whoever was told before does nothing twice."""
        if self._message is None:
            return
        self._told_s = now_s
        self._awaited &= set(self._roster.workers)  # one that is lost, is lost with what it kept back
        if self._awaited:
            step = self._message.step if self._is_sync else -1
            ask = AskResidual(generation=self._generation, number=self._number, step=step)
            self._decisions.send_all([self._roster.workers[name] for name in sorted(self._awaited)], ask)
            return
        late = [server for name, server in self._roster.servers.items() if name not in self._begun]
        self._decisions.send_all(late, self._message)
        num_written = len(set(self._files) - set(self._roster.server_names))
        if num_written < self._num_savers - self._roster.num_servers:
            work.save_dense(self._number, self._message.step, self._message.folder)

    def handle(self, message: SaveBegun | Saved | SaveFailed, now_s: float) -> KeptCheckpoint | NotKept | None:
        """Take in how far someone is; return what came of the checkpoint once that is known."""
        if self.phase is SavingPhase.NONE or self._manifest is None:
            return None
        if (message.generation, message.number) != (self._generation, self._number):
            return None  # of an attempt that was given up
        if isinstance(message, SaveFailed):
            return self._give_up(f"{message.name}: {message.error}", message.hint)
        self._begun.add(message.name)
        if self._begun >= set(self._roster.server_names):
            self.phase = SavingPhase.WRITING
        if isinstance(message, SaveBegun):
            return None
        self._files[message.name] = message.files
        return self._publish(self._manifest, now_s) if len(self._files) >= self._num_savers else None

    def _publish(self, manifest: RunManifest, now_s: float) -> KeptCheckpoint | NotKept:
        files = {name: checksum for part in self._files.values() for name, checksum in sorted(part.items())}
        try:
            kept = self._store.publish(self._partial, msgspec.structs.replace(manifest, files=files))
        except OSError as error:
            return self._give_up(f"the run's folder cannot be written: {error}", "check the disk")
        self._durations.add(now_s - self._begun_s)
        self.phase = SavingPhase.NONE
        return kept

    def tick(self, work: Work, now_s: float) -> NotKept | None:
        """Tell again who has not answered; give up a checkpoint that takes too long."""
        took_s = now_s - self._begun_s
        if self.phase is SavingPhase.NONE:
            return None
        if took_s <= self._durations.limit_s:
            is_lost = bool(self._awaited) and not self._awaited & set(self._roster.workers)
            if is_lost or now_s - self._told_s > TELL_AGAIN_S:
                self._tell(work, now_s)
            return None
        wrote = ", ".join(sorted(self._files)) or "nobody"
        return self._give_up(f"only {wrote} wrote in {took_s:.0f} s", "check the disk")

    def _give_up(self, why: str, hint: str) -> NotKept:
        """Throw away what is written of the one under way."""
        self.drop_under_way()
        return NotKept(why, hint)

    def drop_under_way(self) -> None:
        """Forget the one under way."""
        if self.phase is not SavingPhase.NONE:
            self._store.forget(self._partial)
        self.phase = SavingPhase.NONE

    def drop(self) -> None:
        """Forget everything: the run goes back."""
        self.drop_under_way()
        self.is_wanted = False
        self._due.restart()


class FolderCheckpointStore:
    """Keeps the newest few."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        fingerprint: Fingerprint,
        tell: Callable[[str], None],
        statistics: Callable[[], Floats | None] = lambda: None,
        spending_at: Callable[[int], Spending | None] = lambda _: None,
    ) -> None:
        """Look into the folder of a run with this fingerprint, which checkpoints are given; `tell` people of others.

        `statistics` returns the running means and variances that go into checkpoints, None while nobody has told any,
        and `spending_at` what a private run has spent up to a step.
        """
        self._spending_at = spending_at
        self._folder, self._keep, self._fingerprint, self._tell = folder, keep, fingerprint, tell
        self._statistics = statistics
        self._before: Floats | None = None
        """The statistics of the checkpoint that the run goes on from."""

    def newest(self) -> KeptCheckpoint:
        """Return the newest checkpoint that is as it was written, and that this run can go on from."""
        folder = checkpoints.newest(self._folder, fits=self._fingerprint, tell=self._tell)
        manifest = RunManifest.read(folder).in_epochs_of(self._fingerprint.data.samples)
        self._before = checkpoints.read_statistics(folder, manifest)
        return KeptCheckpoint(folder, manifest)

    def begin(self, step: int, generation: int) -> Path:
        """Return an empty folder to write a checkpoint into."""
        return checkpoints.begin(self._folder, step, generation)

    def publish(self, partial: Path, manifest: RunManifest) -> KeptCheckpoint:
        """Make a checkpoint of what was written, and drop old ones."""
        told = self._statistics()
        values = self._before if told is None else told
        files = manifest.files
        if values is not None and checkpoints.STATISTICS not in files:  # a server keeps those of whole batches
            checkpoints.write_statistics(values, partial)
            files = files | checkpoints.checksums_in(partial, only=checkpoints.STATISTICS)
        manifest = msgspec.structs.replace(
            manifest, files=files, fingerprint=self._fingerprint, spending=self._spending_at(manifest.step)
        )
        folder = checkpoints.publish(partial, manifest)
        checkpoints.drop_old(self._folder, folder, self._keep)
        return KeptCheckpoint(folder, manifest)

    def forget(self, partial: Path) -> None:
        """Throw away what was written."""
        shutil.rmtree(partial, ignore_errors=True)
