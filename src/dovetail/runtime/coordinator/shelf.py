"""Checkpoints in a run's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.checkpoint import Manifest
from dovetail.runtime.coordinator.saving import Kept


class FolderShelf:
    """Keeps the newest few."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        """Look into a run's folder."""
        self._folder, self._keep = folder, keep

    def newest(self) -> Kept:
        """Return the newest checkpoint whose files are as they were written."""
        folder = checkpoints.newest(self._folder)
        return Kept(folder, Manifest.read(folder))

    def begin(self, step: int, generation: int) -> Path:
        """Return an empty folder to write a checkpoint into."""
        return checkpoints.begin(self._folder, step, generation)

    def publish(self, partial: Path, manifest: Manifest) -> Kept:
        """Make a checkpoint of what was written, and drop old ones."""
        folder = checkpoints.publish(partial, manifest)
        checkpoints.drop_old(self._folder, folder, self._keep)
        return Kept(folder, manifest)

    def forget(self, partial: Path) -> None:
        """Throw away what was written."""
        shutil.rmtree(partial, ignore_errors=True)
