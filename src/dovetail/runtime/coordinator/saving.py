"""Checkpoints of a run: when they are due, and what is known of the one under way."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.checkpoint import RunCheckpoint
from dovetail.runtime.deadline import Deadline
from dovetail.runtime.messages import Save, Saved, SaveFailed

if TYPE_CHECKING:
    from dovetail.runtime.coordinator.loop import Coordinator


class Saving:
    """Has the servers write their parts, and publishes the whole."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Start with nothing under way."""
        self._coordinator = coordinator
        self._settings = coordinator.blueprint.run.checkpoint
        self._wanted = False
        self._generation = 0
        self._last_s = time.monotonic()
        self._last_step = -1
        self._partial: Path | None = None
        self._begun_s = 0.0
        self._manifest: RunCheckpoint | None = None
        self._files: dict[str, dict[str, str]] = {}
        self._durations = Deadline(k=20.0, floor_s=60.0, first_s=600.0)

    @property
    def is_wanted(self) -> bool:
        """Say whether another checkpoint is to be cut."""
        return self._wanted

    def want(self) -> None:
        """Ask for a checkpoint as soon as one can be cut."""
        self._wanted = True
        if self._partial is None:
            self._coordinator.work.pause()

    def look(self, now_s: float) -> None:
        """See whether one is due by time, or takes too long."""
        if self._partial is not None and now_s - self._begun_s > self._durations.limit_s:
            missing = [name for name in self._coordinator.servers if name not in self._files]
            self._give_up(f"{', '.join(missing)} did not write in {now_s - self._begun_s:.0f} s", "check the disk")
        every_s = self._settings.every_s
        if not self._wanted and every_s is not None and now_s - self._last_s >= every_s:
            self.want()

    def due(self, step: int) -> bool:
        """Say whether a checkpoint is due after a step."""
        if self._last_step < 0:
            self._last_step = step - 1
        every = self._settings.every_steps
        if every is not None and step - self._last_step >= every:
            self._wanted = True
        return self._wanted and self._partial is None

    def cut(self) -> None:
        """Have every server write its state as it is now."""
        coordinator = self._coordinator
        step = coordinator.work.step
        self._wanted = False
        self._last_step, self._last_s, self._begun_s = step, time.monotonic(), time.monotonic()
        self._files = {}
        try:
            self._partial = checkpoints.begin(coordinator.folder, step, coordinator.generation)
        except OSError as error:
            self._give_up(f"{coordinator.folder} cannot be written: {error}", "check the disk")
            return
        self._manifest, self._generation = coordinator.work.manifest(files={}), coordinator.generation
        coordinator.send_servers(
            Save(generation=coordinator.generation, step=step, folder=str(self._partial.absolute()))
        )
        coordinator.work.save_dense(str(self._partial.absolute()))

    def saved(self, message: Saved) -> None:
        """Note a server's part; publish when all are there."""
        if self._partial is None or self._manifest is None or message.generation != self._generation:
            return
        if message.step != self._manifest.step:
            return
        self._files[message.name] = message.files
        if len(self._files) < self._coordinator.blueprint.num_servers + self._coordinator.extra_savers:
            return
        files = {name: checksum for part in self._files.values() for name, checksum in sorted(part.items())}
        manifest = msgspec.structs.replace(self._manifest, files=files)
        try:
            folder = checkpoints.publish(self._partial, manifest)
        except OSError as error:
            self._give_up(f"{self._partial} cannot be written: {error}", "check the disk")
            return
        self._durations.add(time.monotonic() - self._begun_s)
        self._partial = None
        self._coordinator.saved(folder, manifest.step)
        if self._wanted and self._coordinator.state in ("running", "saving"):
            self._coordinator.work.pause()

    def failed(self, message: SaveFailed) -> None:
        """Give a checkpoint up that a server could not write."""
        if self._partial is not None and message.generation == self._generation:
            self._give_up(f"{message.name}: {message.error}", message.hint)

    def drop(self) -> None:
        """Forget a checkpoint under way: the run goes back."""
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
        self._partial, self._wanted = None, False
        self._last_step = -1

    def _give_up(self, why: str, hint: str) -> None:
        """Go on without this checkpoint; the last one of a run must not be missing."""
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
        self._partial = None
        if self._coordinator.stops_after_save:
            self._coordinator.fail(f"the last checkpoint could not be written: {why}", hint)
        else:
            self._coordinator.say(f"a checkpoint could not be written: {why}; the run goes on")
