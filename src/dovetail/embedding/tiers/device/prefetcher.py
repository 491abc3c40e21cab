"""The thread that brings keys and arrays of announced batches to the device, on a stream of its own.

What is announced is copied to pinned memory first; neither the thread that trains nor the planner has time for that.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.errors import TableError
from dovetail.embedding.store import TieredStore
from dovetail.embedding.tiers.device.key_lookup import KeyLookup
from dovetail.embedding.tiers.device.migrator import Migrator
from dovetail.embedding.tiers.device.prefetched_batch import MOST_TOGETHER, BatchPlaces, DeviceKeys, PrefetchedBatch
from dovetail.embedding.tiers.device.streams import StreamEvent, Streams
from dovetail.embedding.tiers.device.tier import DeviceTier
from dovetail.units import format_bytes


class H2DStager:
    """Brings batches in the order in which they are asked for, and hands each on."""

    def __init__(self, streams: Streams, hand_on: Callable[[PrefetchedBatch], None]) -> None:
        self._streams, self._hand_on = streams, hand_on
        self._queue: queue.SimpleQueue[tuple[PrefetchedBatch, tuple[NDArray[Any], ...], StreamEvent | None] | None]
        self._queue = queue.SimpleQueue()
        self.turn = threading.Lock()
        """Held while a batch is brought, and by those who want the device to themselves."""
        self._thread = threading.Thread(target=self._run, name="dovetail-bringer", daemon=True)
        self._thread.start()

    def ask(self, plan: PrefetchedBatch, arrays: tuple[NDArray[Any], ...]) -> None:
        """Have a batch's keys and arrays brought; those who gave them must not change them before it is looked up."""
        on_device = isinstance(plan.keys, Tensor) and plan.keys.is_cuda
        self._queue.put((plan, arrays, self._streams.moment() if on_device else None))

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (asked := self._queue.get()) is not None:
            plan, arrays, before = asked
            try:
                with self.turn:
                    self._bring(plan, arrays, before)
            except BaseException as error:  # whoever takes the batch says it
                plan.error = error
            self._hand_on(plan)

    def _bring(self, plan: PrefetchedBatch, arrays: tuple[NDArray[Any], ...], before: StreamEvent | None) -> None:
        streams = self._streams
        with streams.on(streams.bringing):
            streams.wait_for(before)
            if isinstance(plan.keys, Tensor):
                plan.there = plan.keys.to(streams.device)
                plan.inputs = tuple(streams.up_together(arrays))
            else:
                plan.there, *inputs = streams.up_together((plan.keys, *arrays))
                plan.inputs = tuple(inputs)
            plan.given = streams.moment()


MOST_UNDER_WAY = 4
"""Batches that the device may be behind the thread that trains: more would hold rows and memory, and gain nothing."""
PATIENCE_S = 0.1
"""How long the thread sleeps at most before it looks again for room."""


class Prefetcher:
    """Plans batches in a thread of its own; one other thread trains on them."""

    def __init__(
        self,
        tier: DeviceTier,
        store: TieredStore,
        streams: Streams,
        mover: Migrator,
        finder: KeyLookup,
        lock: threading.RLock,
    ) -> None:
        self._tier, self._store, self._streams, self._mover, self._lock = tier, store, streams, mover, lock
        self._finder = finder
        self._turn = threading.Lock()
        """Held while a batch is planned, and by those who want the tier to themselves."""
        self._news = threading.Condition()
        self._waiting: deque[PrefetchedBatch] = deque()
        self._in_use: list[PrefetchedBatch] = []
        self._under_way: deque[StreamEvent] = deque()
        self._last_number = 0
        self._closed = self._wants_room = False
        self.busy_s = 0.0
        mover.on_ready = self._is_ready
        self._bringer = H2DStager(streams, self._is_brought)
        self._thread = threading.Thread(target=self._run, name="dovetail-planner", daemon=True)
        self._thread.start()

    # -- for the thread that trains --------------------------------------------------------------------------------

    def announce(
        self, keys: DeviceKeys, arrays: tuple[NDArray[Any], ...] = (), *, insert: bool = True
    ) -> PrefetchedBatch:
        """Have a batch planned after those announced before, and arrays brought to the device with it."""
        plan = PrefetchedBatch(keys, insert)
        self._bringer.ask(plan, arrays)
        return plan

    def take(self, plan: PrefetchedBatch) -> BatchPlaces:
        """Return where a batch's rows lie; the current stream waits until they are there."""
        while len(self._under_way) > MOST_UNDER_WAY:
            self._under_way.popleft().synchronize()
        with self._news:
            plan.is_taken = True
            self._wake()
            while not plan.is_ready and plan.error is None:
                self._news.wait()
        if plan.error is not None or plan.places is None:
            self._mover.must_work()
            raise plan.error or TableError("a batch was not planned", hint="a bug: report it")
        self._streams.wait_for(plan.ready)
        return plan.places

    def take_again(self, plan: PrefetchedBatch) -> BatchPlaces:
        """Return the same later, when its rows may have been moved."""
        if plan.generation != self._tier.generation:
            with self._news:
                self._in_use.remove(plan)
                plan.forget(self._next_number())
                self._waiting.appendleft(plan)
                self._news.notify_all()
        return self.take(plan)

    def done_with(self, plan: PrefetchedBatch) -> None:
        """Let go of a batch once the current stream has come so far."""
        if plan.done is None:
            plan.done = self._streams.moment()
            self._under_way.append(plan.done)
            if self._wants_room:
                with self._news:
                    self._news.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have the tier to oneself, with all moved that was on its way, and no rows that wait for their first batch."""
        with self._turn, self._bringer.turn:
            self._mover.wait()
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
        with self._turn, self._bringer.turn:
            self._mover.wait()
            self._streams.wait_for_all()
            yield

    def close(self) -> None:
        """End the threads."""
        self._bringer.close()
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._thread.join()

    def _is_brought(self, plan: PrefetchedBatch) -> None:
        """Have a batch planned whose keys are on their way."""
        with self._news:
            plan.number = self._next_number()
            if plan.error is None:
                self._waiting.append(plan)
                self._wake()
            else:
                self._news.notify_all()

    def _wake(self) -> None:
        """Wake the planner where there is something to do: whenever it wakes, the other threads stand still."""
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
                self._store.lifting.forget(self._tier.keys[slots.long()].cpu().numpy())
            self._tier.release(slots.cpu().numpy())

    def _plan_anew(self) -> None:
        """Have those batches planned again that nobody has taken yet."""
        with self._news:
            old = [plan for plan in self._in_use if not plan.is_taken]
            self._in_use = [plan for plan in self._in_use if plan.is_taken]
            for plan in [*old, *self._waiting]:
                plan.forget(self._next_number())  # in the order in which they are planned
            self._waiting.extendleft(reversed(old))
            self._news.notify_all()

    # -- the thread that plans -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._closed and not self._is_worth_it():
                    self._news.wait()
                if self._closed:
                    return
            with self._turn:
                begun_s = time.perf_counter()
                had_room = self._plan_next()
                self.busy_s += time.perf_counter() - begun_s
            if not had_room:
                self._wait_for_room()

    def _is_worth_it(self) -> bool:
        """Say whether to plan now: not where more batches can be planned at once before any is waited for."""
        if any(plan.is_taken for plan in self._waiting):
            return True
        num_ahead = sum(not plan.is_taken for plan in self._in_use)
        return len(self._waiting) >= max(1, min(num_ahead, MOST_TOGETHER))

    def _plan_next(self) -> bool:
        """Plan the first batches that wait; False where the rows of the first do not fit beside those in use."""
        with self._news:
            if not self._waiting:
                return True
            self._in_use = [each for each in self._in_use if each.done is None or not each.done.query()]
            plans = self._next_plans()
            oldest = min(each.number for each in (*self._in_use, *plans))
        error: BaseException | None = None
        try:
            with torch.no_grad(), self._streams.on(self._streams.planning):
                if not self._finder.find(plans, oldest=oldest):
                    self._must_get_room(plans[0])
                    return False
        except BaseException as caught:  # whoever takes the batches says it
            error = caught
        with self._news:
            for plan in plans:
                plan.error = plan.error or error
                self._waiting.remove(plan)
                if error is None:
                    self._in_use.append(plan)
            self._news.notify_all()
        return True

    def _next_plans(self) -> list[PrefetchedBatch]:
        """Return the batches to plan together: one that is waited for alone, else as many as surely fit."""
        taken = next((each for each in self._waiting if each.is_taken), None)
        if taken is not None and taken is not self._waiting[0]:
            return [taken]
        first, *others = itertools.islice(self._waiting, MOST_TOGETHER)
        plans, room = [first], self._tier.capacity - first.num_keys
        room -= sum(each.places.num_unique for each in self._in_use if each.places is not None)
        for plan in others:
            room -= plan.num_keys
            if room < 0 or not (first.insert and plan.insert and first.num_keys and plan.num_keys):
                break
            plans.append(plan)
        return plans

    def _must_get_room(self, plan: PrefetchedBatch) -> None:
        """Have batches that nobody waits for give way to one that somebody does; refuse it where there are none."""
        if not plan.is_taken or any(each.done is not None for each in self._in_use):
            return
        if any(not each.is_taken for each in self._in_use):
            self._mover.wait()
            self._streams.wait_for_all()
            self._forget_announced()
            self._plan_anew()
            return
        tier = self._tier
        in_use = sum(each.places.num_unique for each in self._in_use if each.places is not None)
        own = len(torch.unique(torch.as_tensor(plan.keys)))
        raise TableError(
            f"batches in use hold {in_use:,} rows, another one has {own:,}, and device_bytes = "
            f"{format_bytes(tier.device_bytes)} has room for {tier.capacity:,}",
            hint=f"give device_bytes of at least {(in_use + own + 1) * tier.slot_bytes}, or step each batch before the "
            "next is looked up",
        )

    def _is_ready(self, plans: list[PrefetchedBatch]) -> None:
        """Say that batches' rows are on their way up."""
        with self._news:
            for plan in plans:
                plan.is_ready = True
            self._news.notify_all()

    def _wait_for_room(self) -> None:
        """Wait until a batch in use is done."""
        with self._news:
            done = next((plan.done for plan in self._in_use if plan.done is not None), None)
            if done is None and not self._closed:
                self._wants_room = True
                self._news.wait(PATIENCE_S)
                self._wants_room = False
        if done is not None:
            done.synchronize()
