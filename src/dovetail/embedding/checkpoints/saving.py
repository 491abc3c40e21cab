"""Saving a table while it is in use: rows as they were at one moment, while training goes on.

At the start every row to be written is marked. The writer takes marked rows part by part; whoever is about to change or
delete a marked row hands it over first. So each is written once, as it was at the start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.atomic_file import sync
from dovetail.embedding.checkpoints.format import (
    WRITING,
    Checkpoint,
    CheckpointPart,
    Kind,
    TableManifest,
    TableSettings,
    write_part,
)
from dovetail.embedding.errors import TableError, storage_error
from dovetail.embedding.places import NOWHERE
from dovetail.embedding.row_metadata import CHANGED, PENDING, SAVED
from dovetail.embedding.store import TieredStore

PART_ROWS = 65_536
"""Rows of one file; as many may wait in memory before whoever adds more has to write them."""
WRITERS = 4
"""Threads that write rows of a device, all of which come at once; more than the disk keeps up with bring nothing."""


@dataclass(slots=True)
class Snapshot:
    """Rows handed over but not written yet, and the parts written."""

    folder: Path
    name: str
    temporary: Path
    kind: Kind
    settings: TableSettings
    base: str | None
    tombstones: NDArray[np.int64]
    rows_by_tier: tuple[int, int, int]
    """In RAM, on disk, on the device."""
    num_pending: int = 0
    _waiting: list[CheckpointPart] = field(default_factory=list)
    _num_waiting: int = 0
    _sums: dict[str, str] = field(default_factory=dict)
    _num_files: int = 0
    _num_rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writers: ThreadPoolExecutor | None = None
    _under_way: deque[tuple[str, Future[str]]] = field(default_factory=deque)
    """Parts that writers are at."""

    @classmethod
    def begin(
        cls,
        folder: Path,
        *,
        kind: Kind,
        settings: TableSettings,
        base: Checkpoint | None,
        tombstones: NDArray[np.int64],
        rows_by_tier: tuple[int, int, int],
    ) -> Snapshot:
        """Make the temporary folder, and sweep what an interrupted checkpoint left."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(f"{WRITING}*"):
                shutil.rmtree(leftover)
            numbers = [int(entry.name[:6]) for entry in folder.glob("[0-9]*-*")]
            name = f"{max(numbers, default=0) + 1:06d}-{kind}"
            temporary = folder / f"{WRITING}{name}"
            temporary.mkdir()
        except OSError as error:
            raise storage_error(folder, error, doing="written") from None
        return cls(folder, name, temporary, kind, settings, base.name if base else None, tombstones, rows_by_tier)

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
            name = f"part-{self._num_files:05d}.safetensors"
            self._num_files += 1
            self._num_rows += len(part.keys)
            if self._writers is None:
                self._sums[name] = write_part(self.temporary / name, part)
                return
            self._under_way.append((name, self._writers.submit(write_part, self.temporary / name, part)))
            while len(self._under_way) > 2 * WRITERS:  # each is held in memory until it is written
                self._settle_one()

    def write_beside(self) -> None:
        """Have what comes from now on written by several threads, while more is taken."""
        self._writers = ThreadPoolExecutor(min(WRITERS, os.cpu_count() or 1), thread_name_prefix="dovetail-writing")

    def _settle_one(self) -> None:
        name, written = self._under_way.popleft()
        self._sums[name] = written.result()

    def commit(self) -> Checkpoint:
        """Write the rest and the manifest, and give the checkpoint its name: from then on it is whole."""
        self.flush(at_least=1)
        while self._under_way:
            self._settle_one()
        if self._writers is not None:
            self._writers.shutdown()
        if len(self.tombstones):
            none = CheckpointPart.empty(self.settings.row_width)
            self._sums["tombstones.safetensors"] = write_part(
                self.temporary / "tombstones.safetensors", none._replace(tombstones=self.tombstones)
            )
        host_rows, disk_rows, device_rows = self.rows_by_tier
        manifest = TableManifest(
            kind=self.kind,
            settings=self.settings,
            base=self.base,
            num_rows=self._num_rows,
            files=self._sums,
            host_rows=host_rows,
            disk_rows=disk_rows,
            device_rows=device_rows,
        )
        final = self.folder / self.name
        try:
            manifest.write(self.temporary)
            sync(self.temporary)
            self.temporary.rename(final)
            sync(self.folder)
        except OSError as error:
            raise storage_error(final, error, doing="written") from None
        return Checkpoint(self.folder, self.name, manifest)

    def abandon(self) -> None:
        """Delete what was written."""
        if self._writers is not None:
            self._writers.shutdown(cancel_futures=True)
        with contextlib.suppress(OSError):
            shutil.rmtree(self.temporary)


class Saver:
    """Writes checkpoints of a store in a thread of its own; whoever calls holds the store's lock."""

    def __init__(self, store: TieredStore, lock: threading.RLock) -> None:
        """Begin without a checkpoint to add to."""
        self._store, self._lock = store, lock
        self.base: Checkpoint | None = None
        self._snapshot: Snapshot | None = None
        self._tombstones: list[NDArray[np.int64]] = []

    def begin(self, path: Path, kind: Kind, settings: TableSettings) -> Future[Checkpoint]:
        """Mark the rows to be written as they are now, and write them in the background."""
        if self._snapshot is not None:
            raise TableError("a checkpoint is being written", hint="wait for its result() before the next one")
        if kind == "delta" and (self.base is None or self.base.folder != path):
            raise TableError(
                f"{path}: there is no full checkpoint of this table to add to", hint='save kind="full" first'
            )
        store = self._store
        snapshot = Snapshot.begin(
            path,
            kind=kind,
            settings=settings,
            base=self.base if kind == "delta" else None,
            tombstones=np.concatenate([*self._tombstones, np.empty(0, dtype=np.int64)]),
            rows_by_tier=store.rows_by_tier,
        )
        snapshot.num_pending = store.mark_pending(everything=kind == "full")
        self._tombstones = []
        self._snapshot = snapshot
        self.base = None
        future: Future[Checkpoint] = Future()
        try:
            self._take_from_device(snapshot, everything=kind == "full")
        except BaseException:
            self._snapshot = None
            snapshot.abandon()
            raise
        thread = threading.Thread(target=self._write, args=(snapshot, future), name="dovetail-checkpoint", daemon=True)
        thread.start()
        return future

    def keep(self, keys: NDArray[np.int64]) -> None:
        """Hand rows that are about to change to the checkpoint under way, where it still has to write them."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        known = self._store.metadata(keys)
        pending = (known.places != NOWHERE) & (known.states == PENDING)
        if not pending.any():
            return
        keys, seen, counts = keys[pending], known.seen[pending], known.counts[pending]
        snapshot.add(keys, self._store.read(keys), seen, counts)
        self._store.set_metadata(keys, seen, counts, np.full(len(keys), SAVED, dtype=np.int32))

    def keep_at(self, slots: NDArray[np.int32]) -> None:
        """Do the same for rows at slots of the host tier."""
        if self._snapshot is not None:
            self.keep(self._store.keys_at(slots))

    def bury(self, keys: NDArray[np.int64]) -> None:
        """Leave tombstones for the next checkpoint, and the rows, which are about to go, for the one under way."""
        self.keep(keys)
        self._tombstones.append(keys)

    def _take_from_device(self, snapshot: Snapshot, *, everything: bool) -> None:
        """Take what is to be written of the device's rows at once: they change too often to be watched."""
        device = self._store.device
        if device is None or not device.num_rows:
            return
        snapshot.write_beside()
        known = device.metadata_at(device.taken())
        wanted = np.flatnonzero(np.ones(len(known.keys), dtype=np.bool_) if everything else known.states == CHANGED)
        for start in range(0, len(wanted), PART_ROWS):
            part = wanted[start : start + PART_ROWS]
            rows = np.empty((len(part), self._store.row_width), dtype=np.float32)
            device.read_into(known.keys[part], known.numbers[part], rows, np.arange(len(part), dtype=np.int32))
            snapshot.num_pending += len(part)
            snapshot.add(known.keys[part], rows, known.seen[part], known.counts[part])
        device.mark_saved(known.numbers[wanted])

    def _write(self, snapshot: Snapshot, future: Future[Checkpoint]) -> None:
        """Write what is pending, part by part, each taken under the lock and written outside of it."""
        try:
            start = 0
            while snapshot.num_pending:
                with self._lock:
                    self._store.must_be_open()
                    keys, start = self._store.some_pending(start)
                    self.keep(keys)
                snapshot.flush()
            checkpoint = snapshot.commit()
            with self._lock:
                self._snapshot, self.base = None, checkpoint
            future.set_result(checkpoint)
        except BaseException as error:
            with self._lock:
                self._snapshot = None
            snapshot.abandon()
            future.set_exception(error)
