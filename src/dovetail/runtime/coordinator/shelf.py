"""Checkpoints in a run's folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.checkpoint import Floats, Manifest
from dovetail.runtime.coordinator.saving import Kept
from dovetail.runtime.fingerprint import Fingerprint


class FolderShelf:
    """Keeps the newest few."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        fingerprint: Fingerprint,
        tell: Callable[[str], None],
        statistics: Callable[[], Floats | None] = lambda: None,
    ) -> None:
        """Look into the folder of a run with this fingerprint, which checkpoints are given; `tell` people of others.

        `statistics` returns the running means and variances that go into checkpoints, None while nobody has told any.
        """
        self._folder, self._keep, self._fingerprint, self._tell = folder, keep, fingerprint, tell
        self._statistics = statistics
        self._before: Floats | None = None
        """The statistics of the checkpoint that the run goes on from."""

    def newest(self) -> Kept:
        """Return the newest checkpoint that is as it was written, and that this run can go on from."""
        folder = checkpoints.newest(self._folder, fits=self._fingerprint, tell=self._tell)
        manifest = Manifest.read(folder).in_epochs_of(self._fingerprint.data.samples)
        self._before = checkpoints.read_statistics(folder, manifest)
        return Kept(folder, manifest)

    def begin(self, step: int, generation: int) -> Path:
        """Return an empty folder to write a checkpoint into."""
        return checkpoints.begin(self._folder, step, generation)

    def publish(self, partial: Path, manifest: Manifest) -> Kept:
        """Make a checkpoint of what was written, and drop old ones."""
        told = self._statistics()
        values = self._before if told is None else told
        files = manifest.files
        if values is not None and checkpoints.STATISTICS not in files:  # a server keeps those of whole batches
            checkpoints.write_statistics(values, partial)
            files = files | checkpoints.checksums_in(partial, only=checkpoints.STATISTICS)
        manifest = msgspec.structs.replace(manifest, files=files, fingerprint=self._fingerprint)
        folder = checkpoints.publish(partial, manifest)
        checkpoints.drop_old(self._folder, folder, self._keep)
        return Kept(folder, manifest)

    def forget(self, partial: Path) -> None:
        """Throw away what was written."""
        shutil.rmtree(partial, ignore_errors=True)
