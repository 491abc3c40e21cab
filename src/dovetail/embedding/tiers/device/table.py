"""A table's rows on a device, for those who train there: batches are announced, looked up and stepped as tensors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dovetail.embedding.arrays import as_keys, own_keys
from dovetail.embedding.checkpoints.saving import Saver
from dovetail.embedding.errors import TableError
from dovetail.embedding.lookup import Lookup
from dovetail.embedding.row_optimizer import RowOptimizer
from dovetail.embedding.store import TieredStore
from dovetail.embedding.tiers.device.key_lookup import KeyLookup
from dovetail.embedding.tiers.device.migrator import Migrator
from dovetail.embedding.tiers.device.prefetched_batch import BatchPlaces, DeviceKeys, PrefetchedBatch
from dovetail.embedding.tiers.device.prefetcher import Prefetcher
from dovetail.embedding.tiers.device.streams import Streams, find_device
from dovetail.embedding.tiers.device.tier import NEVER_SEEN, DeviceTier


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Counts since the table was made, distinct rows of a batch each; `a - b` is what happened in between."""

    num_batches: int
    num_rounds: int
    """How often batches were planned; several at once count once."""
    num_looked_up: int
    num_missing: int
    """Rows that were not on the device when their batch was planned."""
    num_lifted: int
    """Rows that came up from below; the others that were missing were new."""
    num_from_disk: int
    num_lowered: int
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


class Door(Protocol):
    """What a batch asks of the table whose rows it has."""

    tier: DeviceTier
    width: int
    closed: bool

    def places_of(self, plan: PrefetchedBatch) -> BatchPlaces:
        """Return where a batch's rows lie now."""
        ...

    def fill_absent(self, keys: DeviceKeys, slots: Tensor, out: Tensor) -> None:
        """Write the first values of keys that have no row."""
        ...

    def step_rows(self, places: BatchPlaces, order: Tensor, gradients: Tensor) -> None:
        """Sum gradients[order[i]] over the look-ups of each distinct row, and step the rows."""
        ...

    def done_with(self, plan: PrefetchedBatch) -> None:
        """Let a batch go."""
        ...


class DeviceBatch:
    """The rows of one look-up; they stay on the device until they are stepped, or this object goes."""

    def __init__(self, door: Door, plan: PrefetchedBatch) -> None:
        self._door, self._plan = door, plan
        self._bags: Bags | None = None

    @property
    def places(self) -> BatchPlaces:
        """Return where the rows lie."""
        return self._door.places_of(self._plan)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return on the device the arrays that were announced with the keys."""
        return self._plan.inputs

    def values(self) -> Tensor:
        """Return the values of each key: float32 [number of keys, width]."""
        tier, width = self._door.tier, self._door.width
        places = self.places
        out = torch.empty((self._plan.num_keys, width), dtype=torch.float32, device=tier.device)
        tier.kernels.gather(tier.rows, places.slots, width, out)
        if not self._plan.insert:
            self._door.fill_absent(self._plan.keys, places.slots, out)
        return out

    def pooled(self, begins: Tensor, ends: Tensor, *, mean: bool) -> Tensor:
        """Return one vector a bag, where bag b is the keys begins[b] to ends[b], one bag after the other."""
        values = self.values()
        self._bags = bags = Bags(begins.to(values.device), ends.to(values.device), len(values), mean)
        out = torch.empty((bags.num_bags, values.shape[1]), dtype=torch.float32, device=values.device)
        at = torch.arange(len(values), dtype=torch.int32, device=values.device)
        self._door.tier.kernels.sum_rows(values, at, bags.starts, values.shape[1], out, bags.num)
        out += 0.0  # as a sum that begins with zero, which is never -0.0
        return out / bags.divisors if mean else out

    def step(self, gradients: Tensor) -> None:
        """Step the rows by the gradients of what was read: one a key, or one a bag; those of equal keys are summed."""
        if self._plan.done is not None:
            raise TableError("a batch is stepped twice", hint="look its keys up again")
        if not self._plan.insert:
            raise TableError("a look-up that makes no rows is stepped", hint="look up with insert=True to train")
        places = self.places
        order = places.order
        gradients = gradients.detach().float().contiguous()
        if self._bags is not None:
            order = self._bags.bag_of[order.long()]
            gradients = gradients / self._bags.divisors if self._bags.mean else gradients
        self._door.step_rows(places, order, gradients)
        self.release()

    def release(self) -> None:
        """Let the rows go without a step."""
        self._door.done_with(self._plan)

    def __del__(self) -> None:
        """Let the rows of a batch go that nobody steps."""
        if self._plan.done is None and not self._door.closed:
            self._door.done_with(self._plan)


class Bags:
    """Which keys are pooled together."""

    def __init__(self, begins: Tensor, ends: Tensor, num_keys: int, mean: bool) -> None:
        device = begins.device
        self.num_bags, self.mean = len(begins), mean
        lengths = ends - begins
        self.starts = torch.cat([begins, torch.full((1,), num_keys, device=device)]).to(torch.int32)
        self.bag_of = torch.repeat_interleave(
            torch.arange(self.num_bags, device=device), lengths, output_size=num_keys
        ).to(torch.int32)
        self.divisors = lengths.clamp(min=1).float()[:, None]
        self.num = torch.full((1,), self.num_bags, dtype=torch.int32, device=device)


class DeviceTable:
    """The device tier of a table and what moves its rows; one thread may train on it.

    Keys that are announced are found, and their rows brought up, while earlier batches are trained on. What is looked
    up need not have been announced: then it is found at once.
    """

    def __init__(
        self,
        store: TieredStore,
        saver: Saver,
        lookup: Lookup,
        optimizer: RowOptimizer,
        lock: threading.RLock,
        *,
        device: str,
        device_bytes: int,
        device_rows: int | None,
        shard: int = 0,
        num_shards: int = 1,
    ) -> None:
        self._store, self._lookup, self._lock = store, lookup, lock
        self._shards = (shard, num_shards)
        self.width, self._optimizer = store.width, optimizer
        chosen = find_device(device)
        self.tier = DeviceTier(chosen, store.row_width, device_bytes=device_bytes, device_rows=device_rows)
        store.anywhere.above = self.tier
        self._streams = Streams(chosen)
        self.settings = torch.from_numpy(optimizer.settings()).to(chosen)
        self._rate, self._factor = float(self.settings[0]), 1.0
        self.clock = torch.zeros((), dtype=torch.int32, device=chosen)
        """How many updates there were, as kernels read it."""
        self.mover = Migrator(self.tier, store, saver, self._streams, lock)
        self.finder = KeyLookup(self.tier, store, self._streams, self.mover, lock)
        self._planner = Prefetcher(self.tier, store, self._streams, self.mover, self.finder, lock)
        self._announced: deque[PrefetchedBatch] = deque()
        self.closed = False
        self._streams.wait_for_all()

    @property
    def device(self) -> torch.device:
        """Return where the rows are."""
        return self.tier.device

    @property
    def num_ahead(self) -> int:
        """Return how many batches are announced and not looked up yet."""
        return len(self._announced)

    def announce(self, keys: ArrayLike | Tensor, *arrays: NDArray[Any]) -> None:
        """Have the rows of a batch brought up, in the background, before they are looked up, and `arrays` with them."""
        self._must_be_open()
        self._announced.append(self._planner.announce(self._own(keys), arrays))

    def look_up(self, keys: ArrayLike | Tensor | None = None, *, insert: bool = True) -> DeviceBatch:
        """Return the rows of `keys`, or of the next batch announced.

        A key without a row gets one, or, where `insert` is off, shows its first values and gets none.
        """
        self._must_be_open()
        plan = self._next(keys, insert=insert)
        places = self._planner.take(plan)
        tier, known = self.tier, places.unique[: places.num_unique]
        if not insert:  # rows that wait for their first batch are none yet
            known = known[(known != tier.nowhere) & (tier.seen[known.long()] != NEVER_SEEN)]
        tier.kernels.touch(tier.seen, tier.counts, known, self.clock, places.num if insert else None)
        self._count(len(known))
        return DeviceBatch(self, plan)

    def skip(self) -> None:
        """Forget the next batch announced."""
        plan = self._next(None, insert=True)
        self._planner.take(plan)
        self._planner.done_with(plan)

    def update(self, keys: ArrayLike | Tensor, gradients: Tensor) -> None:
        """Step the rows of `keys` by their gradients, without a look-up."""
        self._must_be_open()
        plan = self._planner.announce(self._own(keys))
        places = self._planner.take(plan)
        where = places.unique[: places.num_unique].long()
        seen = self.tier.seen[where]
        self.tier.seen[where] = torch.where(seen == NEVER_SEEN, self.clock, seen)
        DeviceBatch(self, plan).step(gradients)

    def moved(self) -> Moved:
        """Return what was found and moved since the table was made, and how long its threads were at it."""
        finder, mover = self.finder, self.mover
        return Moved(
            num_batches=finder.num_batches,
            num_rounds=finder.num_rounds,
            num_looked_up=finder.num_unique,
            num_missing=finder.num_missing,
            num_lifted=mover.num_lifted,
            num_from_disk=mover.num_from_disk,
            num_lowered=mover.num_lowered,
            planning_s=self._planner.busy_s,
            planning_waited_s=finder.waited_s,
            moving_s=mover.busy_s,
            moving_waited_s=mover.waited_s,
        )

    def set_rate_factor(self, factor: float) -> None:
        """Have the following steps use `factor` times the optimizer's learning rate."""
        if factor != self._factor:
            self._factor = factor
            self.settings[0] = float(np.float32(self._rate) * np.float32(factor))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have all rows stand still: nothing is on its way, and what was announced waits."""
        if self.closed:
            yield
            return
        with self._planner.paused():
            yield
        self.set_clock()

    def set_clock(self) -> None:
        """Have kernels read how many updates there were."""
        self.clock.fill_(self._store.clock.step)

    def close(self) -> None:
        """End the threads; rows on the device are gone then."""
        if not self.closed:
            self.closed = True
            self._planner.close()
            self.mover.close()
            self._streams.wait_for_all()

    # -- for a batch -----------------------------------------------------------------------------------------------

    def places_of(self, plan: PrefetchedBatch) -> BatchPlaces:
        """Return where a batch's rows lie now."""
        return self._planner.take_again(plan)

    def step_rows(self, places: BatchPlaces, order: Tensor, gradients: Tensor) -> None:
        """Sum gradients[order[i]] over the look-ups of each distinct row, and step the rows."""
        self.launch_step(places.unique[: places.num_unique], places, order, gradients)
        self._store.clock.step += 1

    def launch_step(self, unique: Tensor, places: BatchPlaces, order: Tensor, gradients: Tensor) -> None:
        """Do the same on the device alone; of `unique`, those beyond `places.num` are no rows."""
        tier = self.tier
        tier.kernels.step_sums(
            *(self._optimizer.name, tier.rows, tier.states, unique, places, order, gradients, self.settings)
        )
        self.clock += 1

    def fill_absent(self, keys: DeviceKeys, slots: Tensor, out: Tensor) -> None:
        """Write the first values of keys that have no row."""
        absent = (slots == self.tier.nowhere).nonzero().squeeze(1)
        if len(absent):
            chosen = torch.as_tensor(keys)[absent.to(keys.device if isinstance(keys, Tensor) else "cpu")]
            out[absent] = torch.from_numpy(self._store.first_rows(chosen.cpu().numpy())).to(out.device)

    def take_next(self) -> tuple[PrefetchedBatch, BatchPlaces]:
        """Return the next batch announced, on whose rows the current stream waits; `gather` and `stepped` follow."""
        self._must_be_open()
        plan = self._next(None, insert=True)
        return plan, self._planner.take(plan)

    def gather(self, places: BatchPlaces, unique: Tensor) -> Tensor:
        """Return the values of a batch's look-ups, and count them."""
        tier = self.tier
        tier.kernels.touch(tier.seen, tier.counts, unique, self.clock, places.num)
        out = torch.empty((places.num_keys, self.width), dtype=torch.float32, device=tier.device)
        tier.kernels.gather(tier.rows, places.slots, self.width, out)
        return out

    def stepped(self, plan: PrefetchedBatch, places: BatchPlaces) -> None:
        """Note that a batch was looked up and its rows stepped."""
        self._count(places.num_unique)
        self._store.clock.step += 1
        self._planner.done_with(plan)

    def quiet(self) -> AbstractContextManager[None]:
        """Have nothing planned or moved for a moment, and all as it is."""
        return self._planner.quiet()

    def done_with(self, plan: PrefetchedBatch) -> None:
        """Let a batch go."""
        self._planner.done_with(plan)

    def _count(self, num_rows: int) -> None:
        """Count a batch's distinct rows as looked up, and halve all counts where it is time."""
        if self._lookup.note(num_rows):
            with self._lock:
                self._store.facts.age()
            self.tier.age()

    # -- the rest --------------------------------------------------------------------------------------------------

    def _next(self, keys: ArrayLike | Tensor | None, *, insert: bool) -> PrefetchedBatch:
        """Return the first announced batch where it is the one that is wanted, else another one."""
        if keys is None:
            if not self._announced:
                raise TableError("no batch is announced", hint="announce its keys, or give them")
            return self._announced.popleft()
        own = self._own(keys)
        if insert and self._announced and _equal(own, self._announced[0].keys):
            return self._announced.popleft()
        return self._planner.announce(own, insert=insert)

    def _own(self, keys: ArrayLike | Tensor) -> DeviceKeys:
        """Return keys as a vector; those of other shards are refused."""
        if isinstance(keys, Tensor) and self._shards[1] == 1 and keys.dtype == torch.int64 and keys.dim() == 1:
            return keys
        array = as_keys(keys.cpu().numpy() if isinstance(keys, Tensor) else keys)
        return own_keys(array, *self._shards)

    def _must_be_open(self) -> None:
        self._store.must_be_open()
        self.mover.must_work()


def _equal(one: DeviceKeys, other: DeviceKeys) -> bool:
    """Say whether two batches have the same keys."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.device == other.device and torch.equal(one, other)
    return np.array_equal(_numpy(one), _numpy(other))


def _numpy(keys: DeviceKeys) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return keys.cpu().numpy() if isinstance(keys, Tensor) else keys
