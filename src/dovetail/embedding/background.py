"""Work beside the caller's: rows are fetched before they are needed, and written back before room is."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.store import Store
from dovetail.embedding.tier import MOST_AT_ONCE

SHORTEST_PAUSE_S = 0.001
"""A caller who comes back sooner would wait for a write-back; its next look-up makes room itself."""


class Background:
    """One thread that works on a store under the store's lock."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        self._store, self._lock = store, lock
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dovetail-table")
        self._writing_back = False
        self._left_s = self._pause_s = 0.0
        self._step_looked_up = -1

    def caller_came(self) -> None:
        """Note how long the caller did something else."""
        self._pause_s = time.monotonic() - self._left_s

    def caller_looked_up(self) -> None:
        """Take it as leaving where the look-up before was not followed by an update either: then none will be."""
        step = self._store.clock.step
        if step == self._step_looked_up:
            self.caller_leaves()
        self._step_looked_up = step

    def caller_leaves(self) -> None:
        """Have some of the least used rows written, where there is little room and, going by the last time, time."""
        self._left_s = time.monotonic()
        if self._pause_s > SHORTEST_PAUSE_S:
            self._write_back_soon()

    def prefetch(self, keys: NDArray[np.int64], ahead: int) -> Future[int]:
        """Bring rows up and keep them for the next `ahead` look-ups; the result counts the fetches."""
        return self._pool.submit(self._prefetch, keys, ahead)

    def prepare(self, batches: list[NDArray[np.int64]]) -> Future[int]:
        """Keep what the batches after the next one need, and fetch for the first; the result counts the fetches."""
        return self._pool.submit(self._prepare, batches)

    def close(self) -> None:
        """Wait for what is under way, and leave the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, batches: list[NDArray[np.int64]]) -> int:
        """Mark what is needed, then fetch for the first batch."""
        for distance, keys in enumerate(batches):
            with self._lock:
                if self._store.closed:
                    return 0
                self._store.facts.need(keys, self._store.clock.batch + distance + 2)
        return self._prefetch(batches[0], 2) if batches else 0

    def _prefetch(self, keys: NDArray[np.int64], ahead: int) -> int:
        """Fetch in parts, so that nobody waits long."""
        unique = np.unique(keys)
        fetched = 0
        for start in range(0, len(unique), MOST_AT_ONCE):
            part = unique[start : start + MOST_AT_ONCE]
            with self._lock:
                if self._store.closed:
                    return fetched
                before = self._store.num_fetched
                held = self._store.hold(self._store.facts.not_on_device(part), insert=False)
                if held is None:
                    return fetched
                self._store.keep_until(held, self._store.clock.batch + ahead)
                fetched += self._store.num_fetched - before
        return fetched

    def _write_back_soon(self) -> None:
        """Write back after what is under way."""
        if self._store.room.is_short and not self._writing_back:
            self._writing_back = True
            self._pool.submit(self._write_back, self._store.clock.operation)

    def _write_back(self, done_with: int) -> None:
        """Evict until a little room is free; not now, where somebody is at work on the table."""
        try:
            if self._lock.acquire(blocking=False):
                try:
                    if not self._store.closed:
                        self._store.room.make_ahead(done_with=done_with)
                finally:
                    self._lock.release()
        finally:
            self._writing_back = False
