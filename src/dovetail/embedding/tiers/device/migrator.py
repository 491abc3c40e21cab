"""The thread that moves rows between the device and the tiers below, in the order in which the prefetcher asks for it.

In order, so that a row that went down and is wanted again is below before it is looked for there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.checkpoints.saving import Saver
from dovetail.embedding.errors import TableError
from dovetail.embedding.promotion import Promoted
from dovetail.embedding.store import TieredStore
from dovetail.embedding.tiers.device.prefetched_batch import PrefetchedBatch
from dovetail.embedding.tiers.device.streams import StreamEvent, Streams
from dovetail.embedding.tiers.device.tier import NEVER_SEEN, DeviceTier


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """Rows that batches miss: those below come up to their slots, keys without a row are noted."""

    batches: list[PrefetchedBatch]
    keys: NDArray[np.int64]
    numbers: NDArray[np.int32]
    slots: Tensor


@dataclass(frozen=True, slots=True)
class DemotionRequest:
    """Rows that go down, as they are once their copy is here."""

    keys: Tensor
    rows: Tensor
    known: Tensor
    copied: StreamEvent
    kept: tuple[Tensor, ...]
    """What the copies are made of, which must live until they are made."""


class Migrator:
    """Moves rows in a thread of its own."""

    def __init__(
        self,
        tier: DeviceTier,
        store: TieredStore,
        saver: Saver,
        streams: Streams,
        lock: threading.RLock,
        *,
        on_ready: Callable[[list[PrefetchedBatch]], None],
    ) -> None:
        """Tell `on_ready` of batches whose rows are on their way up."""
        self._tier, self._store, self._saver, self._streams, self._lock = tier, store, saver, streams, lock
        self._queue: queue.SimpleQueue[PromotionRequest | DemotionRequest | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._on_ready = on_ready
        self.error: BaseException | None = None
        """What went wrong: from then on nothing is moved."""
        self.num_promoted = self.num_from_disk = self.num_demoted = 0
        self.busy_s = self.waited_s = 0.0
        self._thread = threading.Thread(target=self._run, name="dovetail-migrator", daemon=True)
        self._thread.start()

    def ask(self, what: PromotionRequest | DemotionRequest) -> None:
        """Have rows moved after those that were asked for before."""
        self._queue.put(what)

    def wait(self) -> None:
        """Wait until all is moved that was asked for."""
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait()
        self.must_work()

    def must_work(self) -> None:
        """Refuse to go on after a failure: rows may be missing."""
        if self.error is not None:
            raise TableError(
                f"rows could not be moved between the device and the tiers below: {self.error}",
                hint=getattr(self.error, "hint", None) or "load the last checkpoint",
            ) from self.error

    def close(self) -> None:
        """End the thread once all is moved."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (what := self._queue.get()) is not None:
            if isinstance(what, threading.Event):
                what.set()
                continue
            begun_s = time.perf_counter()
            try:
                if self.error is None:
                    self._move(what)
            except BaseException as error:  # whoever waits for the rows says it
                self.error = error
            self.busy_s += time.perf_counter() - begun_s
            if isinstance(what, PromotionRequest):
                for batch in what.batches:
                    batch.error = self.error
                self._on_ready(what.batches)

    def _move(self, what: PromotionRequest | DemotionRequest) -> None:
        with torch.no_grad():
            if isinstance(what, PromotionRequest):
                self._promote(what)
            else:
                self._demote(what)

    def _demote(self, what: DemotionRequest) -> None:
        begun_s = time.perf_counter()
        what.copied.synchronize()
        self.waited_s += time.perf_counter() - begun_s
        keys, rows, known = what.keys.numpy(), what.rows.numpy(), what.known.numpy()
        unseen = known[:, 0] == NEVER_SEEN  # made for a batch that nobody looked up: no rows yet
        with self._lock:
            if unseen.any():
                self._store.promotion.forget(keys[unseen])
                keys, rows, known = keys[~unseen], rows[~unseen], known[~unseen]
            self._store.promotion.demote(keys, rows, known)
        self.num_demoted += len(keys)

    def _promote(self, what: PromotionRequest) -> None:
        """Bring rows up to slots that already have first values, for those keys that have no row below."""
        tier, streams = self._tier, self._streams
        with streams.on(streams.rising):
            streams.wait_for(what.batches[0].planned)
            if len(what.keys):
                pinned = streams.host_rows(len(what.keys), tier.row_width)
                with self._lock:
                    self._saver.keep(what.keys)
                    promoted = self._store.promotion.promote(what.keys, what.numbers, pinned.numpy())
                self.num_from_disk += promoted.num_from_disk
                self._put(promoted, pinned, what)
            ready = streams.event()
            for batch in what.batches:
                batch.ready = ready

    def _put(self, promoted: Promoted, pinned: Tensor, what: PromotionRequest) -> None:
        """Copy rows up."""
        tier, streams, count = self._tier, self._streams, len(promoted.at)
        if count:
            at, known = streams.up(promoted.at), streams.up(promoted.known)
            where = what.slots[at.long()].long()
            tier.rows[where] = pinned[:count].to(tier.device, non_blocking=True)
            tier.seen[where] = known[:, 0]
            tier.counts[where] = known[:, 1].to(torch.int16)
            tier.states[where] = known[:, 2].to(torch.int8)
            for batch in what.batches:
                batch.kept += [pinned, at, known, where]
            self.num_promoted += count
