"""A table's rows on a device, for those who train there: batches are announced, looked up and stepped as tensors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dovetail.embedding.arrays import as_keys, own_keys
from dovetail.embedding.device.batch import DeviceBatch
from dovetail.embedding.device.finder import Finder
from dovetail.embedding.device.moved import Moved
from dovetail.embedding.device.mover import Mover
from dovetail.embedding.device.plan import DeviceKeys, Places, Plan
from dovetail.embedding.device.planner import Planner
from dovetail.embedding.device.streams import Streams, find_device
from dovetail.embedding.device_tier import NEVER_SEEN, DeviceTier
from dovetail.embedding.errors import TableError
from dovetail.embedding.lookup import Lookup
from dovetail.embedding.row_optimizer import RowOptimizer
from dovetail.embedding.saving import Saver
from dovetail.embedding.store import Store


class OnDevice:
    """The device tier of a table and what moves its rows; one thread may train on it.

    Keys that are announced are found, and their rows brought up, while earlier batches are trained on. What is looked
    up need not have been announced: then it is found at once.
    """

    def __init__(
        self,
        store: Store,
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
        self.mover = Mover(self.tier, store, saver, self._streams, lock)
        self.finder = Finder(self.tier, store, self._streams, self.mover, lock)
        self._planner = Planner(self.tier, store, self._streams, self.mover, self.finder, lock)
        self._announced: deque[Plan] = deque()
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

    def places_of(self, plan: Plan) -> Places:
        """Return where a batch's rows lie now."""
        return self._planner.take_again(plan)

    def step_rows(self, places: Places, order: Tensor, gradients: Tensor) -> None:
        """Sum gradients[order[i]] over the look-ups of each distinct row, and step the rows."""
        self.launch_step(places.unique[: places.num_unique], places, order, gradients)
        self._store.clock.step += 1

    def launch_step(self, unique: Tensor, places: Places, order: Tensor, gradients: Tensor) -> None:
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

    def take_next(self) -> tuple[Plan, Places]:
        """Return the next batch announced, on whose rows the current stream waits; `gather` and `stepped` follow."""
        self._must_be_open()
        plan = self._next(None, insert=True)
        return plan, self._planner.take(plan)

    def gather(self, places: Places, unique: Tensor) -> Tensor:
        """Return the values of a batch's look-ups, and count them."""
        tier = self.tier
        tier.kernels.touch(tier.seen, tier.counts, unique, self.clock, places.num)
        out = torch.empty((places.num_keys, self.width), dtype=torch.float32, device=tier.device)
        tier.kernels.gather(tier.rows, places.slots, self.width, out)
        return out

    def stepped(self, plan: Plan, places: Places) -> None:
        """Note that a batch was looked up and its rows stepped."""
        self._count(places.num_unique)
        self._store.clock.step += 1
        self._planner.done_with(plan)

    def quiet(self) -> AbstractContextManager[None]:
        """Have nothing planned or moved for a moment, and all as it is."""
        return self._planner.quiet()

    def done_with(self, plan: Plan) -> None:
        """Let a batch go."""
        self._planner.done_with(plan)

    def _count(self, num_rows: int) -> None:
        """Count a batch's distinct rows as looked up, and halve all counts where it is time."""
        if self._lookup.note(num_rows):
            with self._lock:
                self._store.facts.age()
            self.tier.age()

    # -- the rest --------------------------------------------------------------------------------------------------

    def _next(self, keys: ArrayLike | Tensor | None, *, insert: bool) -> Plan:
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
