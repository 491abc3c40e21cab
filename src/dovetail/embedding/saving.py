"""Saving a table while it is in use: marked rows are written part by part, and handed over before they change."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.checkpoint import Checkpoint, Kind, Settings
from dovetail.embedding.errors import TableError
from dovetail.embedding.places import NOWHERE
from dovetail.embedding.row_facts import Facts
from dovetail.embedding.slot_line import CHANGED, PENDING, SAVED
from dovetail.embedding.snapshot import PART_ROWS, Snapshot
from dovetail.embedding.store import Store


class Saver:
    """Writes checkpoints of a store in a thread of its own; whoever calls holds the store's lock."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        """Begin without a checkpoint to add to."""
        self._store, self._lock = store, lock
        self.base: Checkpoint | None = None
        self._snapshot: Snapshot | None = None
        self._tombstones: list[NDArray[np.int64]] = []

    def begin(self, path: Path, kind: Kind, settings: Settings) -> Future[Checkpoint]:
        """Mark the rows to be written as they are now, and write them in the background."""
        if self._snapshot is not None:
            raise TableError("a checkpoint is being written", hint="wait for its result() before the next one")
        if kind == "delta" and (self.base is None or self.base.folder != path):
            raise TableError(
                f"{path}: there is no full checkpoint of this table to add to", hint='save kind="full" first'
            )
        store = self._store
        base = self.base if kind == "delta" else None
        snapshot = Snapshot.begin(path, kind=kind, settings=settings, base=base)
        snapshot.tombstones = np.concatenate([*self._tombstones, np.empty(0, dtype=np.int64)])
        snapshot.num_pending = store.facts.mark_pending(everything=kind == "full")
        snapshot.host_rows, snapshot.disk_rows, snapshot.device_rows = store.rows_by_tier
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
        facts = self._store.facts.of(keys)
        pending = (facts.places != NOWHERE) & (facts.states == PENDING)
        if not pending.any():
            return
        keys, facts = keys[pending], Facts(*(numbers[pending] for numbers in facts))
        snapshot.add(keys, self._store.anywhere.read(keys), facts.seen, facts.counts)
        self._store.facts.set(keys, facts._replace(states=np.full(len(keys), SAVED, dtype=np.int32)))

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
        above = self._store.anywhere.above
        if above is None or not above.num_rows:
            return
        facts = self._store.anywhere.all_above(above)
        wanted = np.flatnonzero(np.ones(len(facts.keys), dtype=np.bool_) if everything else facts.states == CHANGED)
        for start in range(0, len(wanted), PART_ROWS):
            part = wanted[start : start + PART_ROWS]
            rows = np.empty((len(part), self._store.row_width), dtype=np.float32)
            above.read_into(facts.keys[part], facts.numbers[part], rows, np.arange(len(part), dtype=np.int32))
            snapshot.num_pending += len(part)
            snapshot.add(facts.keys[part], rows, facts.seen[part], facts.counts[part])
        above.mark_saved(facts.numbers[wanted])

    def _write(self, snapshot: Snapshot, future: Future[Checkpoint]) -> None:
        """Write what is pending, part by part, each taken under the lock and written outside of it."""
        try:
            start = 0
            while snapshot.num_pending:
                with self._lock:
                    self._store.must_be_open()
                    keys, start = self._store.facts.some_pending(start)
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
