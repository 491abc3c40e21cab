"""A checkpoint being written: rows as they were at one moment, while training goes on.

At the start every row to be written is marked. The writer takes marked rows part by part; whoever is about to change or
delete a marked row hands it over first. So each is written once, as it was at the start.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.checkpoint import Checkpoint, CheckpointPart, Kind, Manifest, Settings, sync_folder, write_part
from dovetail.embedding.errors import storage_error

PART_ROWS = 65_536
"""Rows of one file; as many may wait in memory before whoever adds more has to write them."""


@dataclass(slots=True)
class Snapshot:
    """Rows handed over but not written yet, and the parts written."""

    folder: Path
    name: str
    temporary: Path
    kind: Kind
    settings: Settings
    base: str | None
    tombstones: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    num_pending: int = 0
    host_rows: int = 0
    disk_rows: int = 0
    device_rows: int = 0
    _waiting: list[CheckpointPart] = field(default_factory=list)
    _num_waiting: int = 0
    _sums: dict[str, str] = field(default_factory=dict)
    _num_rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begin(cls, folder: Path, *, kind: Kind, settings: Settings, base: Checkpoint | None) -> Snapshot:
        """Make the temporary folder, and sweep what an interrupted checkpoint left."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".writing-*"):
                shutil.rmtree(leftover)
            numbers = [int(entry.name[:6]) for entry in folder.glob("[0-9]*-*")]
            name = f"{max(numbers, default=0) + 1:06d}-{kind}"
            temporary = folder / f".writing-{name}"
            temporary.mkdir()
        except OSError as error:
            raise storage_error(folder, error, doing="written") from None
        return cls(folder, name, temporary, kind, settings, base.name if base else None)

    def add(
        self,
        keys: NDArray[np.int64],
        rows: NDArray[np.float32],
        seen: NDArray[np.int32],
        counts: NDArray[np.int32],
    ) -> None:
        """Take over rows; copies are kept until they are written."""
        with self._lock:
            self._waiting.append(CheckpointPart(keys, rows, seen, counts))
            self._num_waiting += len(keys)
            self.num_pending -= len(keys)
        if self._num_waiting >= PART_ROWS:
            self.flush(at_least=PART_ROWS)

    def flush(self, *, at_least: int = PART_ROWS // 4) -> None:
        """Write what is waiting into one file, where it is worth one."""
        with self._lock:
            if self._num_waiting < max(at_least, 1):
                return
            part = CheckpointPart(
                *(np.concatenate(pieces) for pieces in zip(*(p[:4] for p in self._waiting), strict=True))
            )
            self._waiting, self._num_waiting = [], 0
            name = f"part-{len(self._sums):05d}.safetensors"
            self._sums[name] = write_part(self.temporary / name, part)
            self._num_rows += len(part.keys)

    def commit(self) -> Checkpoint:
        """Write the rest and the manifest, and give the checkpoint its name: from then on it is whole."""
        self.flush(at_least=1)
        if len(self.tombstones):
            none = CheckpointPart.empty(self.settings.row_width)
            self._sums["tombstones.safetensors"] = write_part(
                self.temporary / "tombstones.safetensors", none._replace(tombstones=self.tombstones)
            )
        manifest = Manifest(
            kind=self.kind,
            settings=self.settings,
            base=self.base,
            num_rows=self._num_rows,
            files=self._sums,
            host_rows=self.host_rows,
            disk_rows=self.disk_rows,
            device_rows=self.device_rows,
        )
        final = self.folder / self.name
        try:
            manifest.write(self.temporary)
            sync_folder(self.temporary)
            self.temporary.rename(final)
            sync_folder(self.folder)
        except OSError as error:
            raise storage_error(final, error, doing="written") from None
        return Checkpoint(self.folder, self.name, manifest)

    def abandon(self) -> None:
        """Delete what was written."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.temporary)
