"""The prefetcher: a thread that finds batches' rows ahead, in the order in which they are announced, on its own stream.

A batch in use, planned and not yet done, keeps its rows on the device. Who changes rows behind the prefetcher's back
pauses it first; batches that were planned and not taken are then planned anew.

    announced -> H2DStager (keys to the device) -> KeyLookup (slots) -> Migrator (rows up and down) -> taken -> done
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.checkpoints.saving import Saver
from dovetail.embedding.errors import TableError
from dovetail.embedding.store import TieredStore
from dovetail.embedding.tiers.device.key_lookup import KeyLookup
from dovetail.embedding.tiers.device.migrator import Migrator
from dovetail.embedding.tiers.device.prefetched_batch import MOST_TOGETHER, BatchPlaces, DeviceKeys, PrefetchedBatch
from dovetail.embedding.tiers.device.streams import StreamEvent, Streams
from dovetail.embedding.tiers.device.tier import DeviceTier
from dovetail.units import format_bytes

MOST_UNDER_WAY = 4
"""Batches that the device may be behind the thread that trains: more would hold rows and memory, and gain nothing."""
PATIENCE_S = 0.1
"""How long the thread sleeps at most before it looks again for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Counts since the table was made, distinct rows of a batch each; `a - b` is what happened in between."""

    num_batches: int
    num_rounds: int
    """How often batches were planned; several at once count once."""
    num_looked_up: int
    num_missing: int
    """Rows that were not on the device when their batch was planned."""
    num_promoted: int
    """Rows that came up from below; the others that were missing were new."""
    num_from_disk: int
    num_demoted: int
    planning_s: float
    planning_waited_s: float
    """How much of it was spent waiting for the device."""
    moving_s: float
    moving_waited_s: float

    @property
    def hit_ratio(self) -> float:
        """Return the part of distinct rows that were on the device."""
        return 1 - self.num_missing / self.num_looked_up if self.num_looked_up else 0.0

    def __sub__(self, other: Moved) -> Moved:
        return Moved(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})


class Prefetcher:
    """Plans batches in a thread of its own; one other thread trains on them."""

    def __init__(
        self,
        tier: DeviceTier,
        store: TieredStore,
        saver: Saver,
        streams: Streams,
        lock: threading.RLock,
    ) -> None:
        self._tier, self._store, self._streams, self._lock = tier, store, streams, lock
        self._turn = threading.Lock()
        """Held while a batch is planned, and by those who want the tier to themselves."""
        self._news = threading.Condition()
        self._waiting: deque[PrefetchedBatch] = deque()
        self._in_use: list[PrefetchedBatch] = []
        self._under_way: deque[StreamEvent] = deque()
        self._last_number = 0
        self._wants_room = self.closed = False
        self._busy_s = 0.0
        self._migrator = Migrator(tier, store, saver, streams, lock, on_ready=self._is_ready)
        self._key_lookup = KeyLookup(tier, store, streams, self._migrator, lock)
        self._stager = H2DStager(streams, hand_on=self._is_staged)
        self._thread = threading.Thread(target=self._run, name="dovetail-prefetcher", daemon=True)
        self._thread.start()

    # -- for the thread that trains --------------------------------------------------------------------------------

    def announce(
        self, keys: DeviceKeys, arrays: tuple[NDArray[Any], ...] = (), *, insert: bool = True
    ) -> PrefetchedBatch:
        """Have a batch planned after those announced before, and arrays brought to the device with it."""
        batch = PrefetchedBatch(keys, insert)
        self._stager.ask(batch, arrays)
        return batch

    def take(self, batch: PrefetchedBatch) -> BatchPlaces:
        """Return where a batch's rows lie; the current stream waits until they are there."""
        while len(self._under_way) > MOST_UNDER_WAY:
            self._under_way.popleft().synchronize()
        with self._news:
            batch.is_taken = True
            self._wake()
            while not batch.is_ready and batch.error is None:
                self._news.wait()
        if batch.error is not None or batch.places is None:
            self._migrator.must_work()
            raise batch.error or TableError("a batch was not planned", hint="a bug: report it")
        self._streams.wait_for(batch.ready)
        return batch.places

    def take_again(self, batch: PrefetchedBatch) -> BatchPlaces:
        """Return the same later, when its rows may have been moved."""
        if batch.generation != self._tier.generation:
            with self._news:
                self._in_use.remove(batch)
                batch.forget(self._next_number())
                self._waiting.appendleft(batch)
                self._news.notify_all()
        return self.take(batch)

    def done_with(self, batch: PrefetchedBatch) -> None:
        """Let go of a batch once the current stream has come so far."""
        if batch.done is None:
            batch.done = self._streams.event()
            self._under_way.append(batch.done)
            if self._wants_room:
                with self._news:
                    self._news.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have the tier to oneself, with all moved that was on its way, and no rows that wait for their first batch."""
        with self._turn, self._stager.turn:
            self._migrator.wait()
            self._streams.wait_for_all()
            before = self._tier.generation
            self._forget_announced()
            try:
                yield
            finally:
                self._streams.wait_for_all()
                if self._tier.generation != before:
                    self._plan_anew()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Have nothing planned or moved, and all as it is."""
        with self._turn, self._stager.turn:
            self._migrator.wait()
            self._streams.wait_for_all()
            yield

    def close(self) -> None:
        """End the threads."""
        with self._news:
            self.closed = True
            self._news.notify_all()
        self._stager.close()
        self._thread.join()
        self._migrator.close()
        self._streams.wait_for_all()

    def must_work(self) -> None:
        """Refuse to go on after rows could not be moved."""
        self._migrator.must_work()

    def moved(self) -> Moved:
        """Return what was found and moved since the table was made, and how long the threads were at it."""
        found, moved = self._key_lookup, self._migrator
        return Moved(
            num_batches=found.num_batches,
            num_rounds=found.num_rounds,
            num_looked_up=found.num_unique,
            num_missing=found.num_missing,
            num_promoted=moved.num_promoted,
            num_from_disk=moved.num_from_disk,
            num_demoted=moved.num_demoted,
            planning_s=self._busy_s,
            planning_waited_s=found.waited_s,
            moving_s=moved.busy_s,
            moving_waited_s=moved.waited_s,
        )

    def _is_staged(self, batch: PrefetchedBatch) -> None:
        """Have a batch planned whose keys are on their way."""
        with self._news:
            batch.number = self._next_number()
            if batch.error is None:
                self._waiting.append(batch)
                self._wake()
            else:
                self._news.notify_all()

    def _wake(self) -> None:
        """Wake the thread that plans where there is something to do: whenever it wakes, the others stand still."""
        if self._is_worth_it():
            self._news.notify_all()

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _forget_announced(self) -> None:
        """Take out rows that were made for batches to come: nobody has looked them up yet."""
        slots = self._tier.announced()
        if len(slots):
            with self._lock:
                self._store.promotion.forget(self._tier.keys[slots.long()].cpu().numpy())
            self._tier.release(slots.cpu().numpy())

    def _plan_anew(self) -> None:
        """Have those batches planned again that nobody has taken yet."""
        with self._news:
            old = [batch for batch in self._in_use if not batch.is_taken]
            self._in_use = [batch for batch in self._in_use if batch.is_taken]
            for batch in [*old, *self._waiting]:
                batch.forget(self._next_number())  # in the order in which they are planned
            self._waiting.extendleft(reversed(old))
            self._news.notify_all()

    # -- the thread that plans -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._news:
                while not self.closed and not self._is_worth_it():
                    self._news.wait()
                if self.closed:
                    return
            with self._turn:
                begun_s = time.perf_counter()
                had_room = self._plan_next()
                self._busy_s += time.perf_counter() - begun_s
            if not had_room:
                self._wait_for_room()

    def _is_worth_it(self) -> bool:
        """Say whether to plan now: not where more batches can be planned at once before any is waited for."""
        if any(batch.is_taken for batch in self._waiting):
            return True
        num_ahead = sum(not batch.is_taken for batch in self._in_use)
        return len(self._waiting) >= max(1, min(num_ahead, MOST_TOGETHER))

    def _plan_next(self) -> bool:
        """Plan the first batches that wait; False where the rows of the first do not fit beside those in use."""
        with self._news:
            if not self._waiting:
                return True
            self._in_use = [each for each in self._in_use if each.done is None or not each.done.query()]
            batches = self._next_batches()
            oldest = min(each.number for each in (*self._in_use, *batches))
        error: BaseException | None = None
        try:
            with torch.no_grad(), self._streams.on(self._streams.planning):
                if not self._key_lookup.find(batches, oldest=oldest):
                    self._must_get_room(batches[0])
                    return False
        except BaseException as caught:  # whoever takes the batches says it
            error = caught
        with self._news:
            for batch in batches:
                batch.error = batch.error or error
                self._waiting.remove(batch)
                if error is None:
                    self._in_use.append(batch)
            self._news.notify_all()
        return True

    def _next_batches(self) -> list[PrefetchedBatch]:
        """Return the batches to plan together: one that is waited for alone, else as many as surely fit."""
        taken = next((each for each in self._waiting if each.is_taken), None)
        if taken is not None and taken is not self._waiting[0]:
            return [taken]
        first, *others = itertools.islice(self._waiting, MOST_TOGETHER)
        batches, room = [first], self._tier.capacity - first.num_keys
        room -= sum(each.places.num_unique for each in self._in_use if each.places is not None)
        for batch in others:
            room -= batch.num_keys
            if room < 0 or not (first.insert and batch.insert and first.num_keys and batch.num_keys):
                break
            batches.append(batch)
        return batches

    def _must_get_room(self, batch: PrefetchedBatch) -> None:
        """Have batches that nobody waits for give way to one that somebody does; refuse it where there are none."""
        if not batch.is_taken or any(each.done is not None for each in self._in_use):
            return
        if any(not each.is_taken for each in self._in_use):
            self._migrator.wait()
            self._streams.wait_for_all()
            self._forget_announced()
            self._plan_anew()
            return
        tier = self._tier
        in_use = sum(each.places.num_unique for each in self._in_use if each.places is not None)
        own = len(torch.unique(torch.as_tensor(batch.keys)))
        raise TableError(
            f"batches in use hold {in_use:,} rows, another one has {own:,}, and device_bytes = "
            f"{format_bytes(tier.device_bytes)} has room for {tier.capacity:,}",
            hint=f"give device_bytes of at least {(in_use + own + 1) * tier.slot_bytes}, or step each batch before the "
            "next is looked up",
        )

    def _is_ready(self, batches: list[PrefetchedBatch]) -> None:
        """Say that batches' rows are on their way up."""
        with self._news:
            for batch in batches:
                batch.is_ready = True
            self._news.notify_all()

    def _wait_for_room(self) -> None:
        """Wait until a batch in use is done."""
        with self._news:
            done = next((batch.done for batch in self._in_use if batch.done is not None), None)
            if done is None and not self.closed:
                self._wants_room = True
                self._news.wait(PATIENCE_S)
                self._wants_room = False
        if done is not None:
            done.synchronize()


class H2DStager:
    """Brings keys and arrays of announced batches to the device in a thread and stream of its own, and hands each on.

    They are copied to pinned memory first; neither the thread that trains nor the one that plans has time for that.
    """

    def __init__(self, streams: Streams, *, hand_on: Callable[[PrefetchedBatch], None]) -> None:
        self._streams, self._hand_on = streams, hand_on
        self._queue: queue.SimpleQueue[tuple[PrefetchedBatch, tuple[NDArray[Any], ...], StreamEvent | None] | None]
        self._queue = queue.SimpleQueue()
        self.turn = threading.Lock()
        """Held while a batch is brought, and by those who want the device to themselves."""
        self._thread = threading.Thread(target=self._run, name="dovetail-stager", daemon=True)
        self._thread.start()

    def ask(self, batch: PrefetchedBatch, arrays: tuple[NDArray[Any], ...]) -> None:
        """Have a batch's keys and arrays brought; those who gave them must not change them before it is looked up."""
        on_device = isinstance(batch.keys, Tensor) and batch.keys.is_cuda
        self._queue.put((batch, arrays, self._streams.event() if on_device else None))

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (asked := self._queue.get()) is not None:
            batch, arrays, before = asked
            try:
                with self.turn:
                    self._bring(batch, arrays, before)
            except BaseException as error:  # whoever takes the batch says it
                batch.error = error
            self._hand_on(batch)

    def _bring(self, batch: PrefetchedBatch, arrays: tuple[NDArray[Any], ...], before: StreamEvent | None) -> None:
        streams = self._streams
        with streams.on(streams.bringing):
            streams.wait_for(before)
            if isinstance(batch.keys, Tensor):
                batch.there = batch.keys.to(streams.device)
                batch.staged = streams.up_together(arrays)
            else:
                batch.there, batch.staged = streams.up_together((batch.keys, *arrays)).without_first()
            batch.given = streams.event()
