"""Checkpoints in a run's folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.checkpoint import Manifest
from dovetail.runtime.coordinator.saving import Kept
from dovetail.runtime.fingerprint import Fingerprint


class FolderShelf:
    """Keeps the newest few."""

    def __init__(self, folder: Path, *, keep: int, fingerprint: Fingerprint, tell: Callable[[str], None]) -> None:
        """Look into the folder of a run with this fingerprint, which checkpoints are given; `tell` people of others."""
        self._folder, self._keep, self._fingerprint, self._tell = folder, keep, fingerprint, tell

    def newest(self) -> Kept:
        """Return the newest checkpoint that is as it was written, and that this run can go on from."""
        folder = checkpoints.newest(self._folder, fits=self._fingerprint, tell=self._tell)
        return Kept(folder, Manifest.read(folder))

    def begin(self, step: int, generation: int) -> Path:
        """Return an empty folder to write a checkpoint into."""
        return checkpoints.begin(self._folder, step, generation)

    def publish(self, partial: Path, manifest: Manifest) -> Kept:
        """Make a checkpoint of what was written, and drop old ones."""
        manifest = msgspec.structs.replace(manifest, fingerprint=self._fingerprint)
        folder = checkpoints.publish(partial, manifest)
        checkpoints.drop_old(self._folder, folder, self._keep)
        return Kept(folder, manifest)

    def forget(self, partial: Path) -> None:
        """Throw away what was written."""
        shutil.rmtree(partial, ignore_errors=True)
