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
from dovetail.embedding.checkpoints.saving import Saver
from dovetail.embedding.errors import TableError
from dovetail.embedding.lookup import Lookup
from dovetail.embedding.row_optimizer import RowOptimizer
from dovetail.embedding.store import TieredStore
from dovetail.embedding.tiers.device.prefetched_batch import BatchPlaces, DeviceKeys, PrefetchedBatch
from dovetail.embedding.tiers.device.prefetcher import Moved, Prefetcher
from dovetail.embedding.tiers.device.streams import Streams
from dovetail.embedding.tiers.device.tier import NEVER_SEEN, DeviceTier


class RowStepper:
    """Reads and steps rows that lie on the device, given their places; a CUDA graph can hold what it launches."""

    def __init__(self, tier: DeviceTier, store: TieredStore, optimizer: RowOptimizer) -> None:
        self._tier, self._store, self._optimizer = tier, store, optimizer
        self._settings = torch.from_numpy(optimizer.settings()).to(tier.device)
        self._rate = float(self._settings[0])
        self._step_number: int | None = None
        self._factor = 1.0
        self._clock = torch.zeros((), dtype=torch.int32, device=tier.device)
        """How many updates there were, as kernels read it."""

    def set_clock(self) -> None:
        """Have kernels read how many updates there were."""
        self._clock.fill_(self._store.clock.step)

    def begin_step(self, step: int | None, factor: float) -> None:
        """Have what follows be a step of that number, at `factor` times the learning rate; None: steps are counted."""
        self._step_number, self._factor = step, factor
        self.set_rate()

    def set_rate(self) -> None:
        """Have kernels read the rate of the next step."""
        number = self._store.clock.step + 1 if self._step_number is None else self._step_number
        rate = float(np.float32(self._optimizer.rate(number, self._factor)))
        if rate != self._rate:
            self._rate = rate
            self._settings[0] = rate

    def touch(self, unique: Tensor, num: Tensor | None) -> None:
        """Count a look-up of distinct rows, of the first `num` where that is given, at the present step."""
        tier = self._tier
        tier.kernels.touch(tier.seen, tier.counts, unique, self._clock, num)

    def see_first(self, unique: Tensor) -> None:
        """Take distinct rows that were made for batches to come as seen now."""
        where = unique.long()
        seen = self._tier.seen[where]
        self._tier.seen[where] = torch.where(seen == NEVER_SEEN, self._clock, seen)

    def gather(self, places: BatchPlaces) -> Tensor:
        """Return the values of a batch's look-ups: float32 [number of keys, width]."""
        tier, width = self._tier, self._store.width
        out = torch.empty((places.num_keys, width), dtype=torch.float32, device=tier.device)
        tier.kernels.gather(tier.rows, places.slots, width, out)
        return out

    def fill_absent(self, keys: DeviceKeys, places: BatchPlaces, out: Tensor) -> None:
        """Write the first values of keys that have no row."""
        absent = (places.slots == self._tier.nowhere).nonzero().squeeze(1)
        if len(absent):
            chosen = torch.as_tensor(keys)[absent.to(keys.device if isinstance(keys, Tensor) else "cpu")]
            out[absent] = torch.from_numpy(self._store.first_rows(chosen.cpu().numpy())).to(out.device)

    def sum_bags(self, values: Tensor, bags: Bags) -> Tensor:
        """Return the sum of each bag's values."""
        out = torch.empty((bags.num_bags, values.shape[1]), dtype=torch.float32, device=values.device)
        at = torch.arange(len(values), dtype=torch.int32, device=values.device)
        self._tier.kernels.sum_rows(values, at, bags.starts, values.shape[1], out, bags.num)
        out += 0.0  # as a sum that begins with zero, which is never -0.0
        return out

    def step(self, unique: Tensor, places: BatchPlaces, order: Tensor, gradients: Tensor) -> None:
        """Sum gradients[order[i]] over the look-ups of each distinct row, and step the rows, on the device alone.

        Of `unique`, those beyond `places.num` are no rows.
        """
        tier = self._tier
        tier.kernels.step_sums(
            self._optimizer.name, tier.rows, tier.states, unique, places, order, gradients, self._settings
        )
        self._clock += 1

    def stepped(self) -> None:
        """Count a step that was launched."""
        self._store.clock.step += 1


class DeviceBatch:
    """The rows of one look-up; they stay on the device until they are stepped, or this object goes."""

    def __init__(self, batch: PrefetchedBatch, prefetcher: Prefetcher, stepper: RowStepper) -> None:
        self._batch, self._prefetcher, self._stepper = batch, prefetcher, stepper
        self._bags: Bags | None = None

    @property
    def places(self) -> BatchPlaces:
        """Return where the rows lie."""
        return self._prefetcher.take_again(self._batch)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return on the device the arrays that were announced with the keys."""
        return self._batch.staged_arrays.tensors()

    def values(self) -> Tensor:
        """Return the values of each key: float32 [number of keys, width]."""
        places = self.places
        out = self._stepper.gather(places)
        if not self._batch.insert:
            self._stepper.fill_absent(self._batch.keys, places, out)
        return out

    def pooled(self, begins: Tensor, ends: Tensor, *, mean: bool) -> Tensor:
        """Return one vector a bag, where bag b is the keys begins[b] to ends[b], one bag after the other."""
        values = self.values()
        self._bags = bags = Bags(begins.to(values.device), ends.to(values.device), len(values), mean)
        out = self._stepper.sum_bags(values, bags)
        return out / bags.divisors if mean else out

    def step(self, gradients: Tensor) -> None:
        """Step the rows by the gradients of what was read: one a key, or one a bag; those of equal keys are summed."""
        if self._batch.done is not None:
            raise TableError("a batch is stepped twice", hint="look its keys up again")
        if not self._batch.insert:
            raise TableError("a look-up that makes no rows is stepped", hint="look up with insert=True to train")
        places = self.places
        order = places.order
        gradients = gradients.detach().float().contiguous()
        if self._bags is not None:
            order = self._bags.bag_of[order.long()]
            gradients = gradients / self._bags.divisors if self._bags.mean else gradients
        self._stepper.set_rate()
        self._stepper.step(places.unique[: places.num_unique], places, order, gradients)
        self._stepper.stepped()
        self.release()

    def release(self) -> None:
        """Let the rows go without a step."""
        self._prefetcher.done_with(self._batch)

    def __del__(self) -> None:
        """Let the rows of a batch go that nobody steps."""
        if self._batch.done is None and not self._prefetcher.closed:
            self.release()


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
        tier: DeviceTier,
        store: TieredStore,
        saver: Saver,
        lookup: Lookup,
        optimizer: RowOptimizer,
        lock: threading.RLock,
        *,
        shard: int = 0,
        num_shards: int = 1,
    ) -> None:
        self.tier, self._store, self._lookup = tier, store, lookup
        self._shards = (shard, num_shards)
        self.width = store.width
        streams = Streams(tier.device)
        self.stepper = RowStepper(tier, store, optimizer)
        self._prefetcher = Prefetcher(tier, store, saver, streams, lock)
        self._announced: deque[PrefetchedBatch] = deque()
        streams.wait_for_all()

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
        self._announced.append(self._prefetcher.announce(self._own(keys), arrays))

    def look_up(self, keys: ArrayLike | Tensor | None = None, *, insert: bool = True) -> DeviceBatch:
        """Return the rows of `keys`, or of the next batch announced.

        A key without a row gets one, or, where `insert` is off, shows its first values and gets none.
        """
        self._must_be_open()
        batch = self._next(keys, insert=insert)
        places = self._prefetcher.take(batch)
        tier, known = self.tier, places.unique[: places.num_unique]
        if not insert:  # rows that wait for their first batch are none yet
            known = known[(known != tier.nowhere) & (tier.seen[known.long()] != NEVER_SEEN)]
        self.stepper.touch(known, places.num if insert else None)
        self._lookup.note(len(known))
        return DeviceBatch(batch, self._prefetcher, self.stepper)

    def skip(self) -> None:
        """Forget the next batch announced."""
        batch = self._next(None, insert=True)
        self._prefetcher.take(batch)
        self._prefetcher.done_with(batch)

    def update(self, keys: ArrayLike | Tensor, gradients: Tensor) -> None:
        """Step the rows of `keys` by their gradients, without a look-up."""
        self._must_be_open()
        batch = self._prefetcher.announce(self._own(keys))
        places = self._prefetcher.take(batch)
        self.stepper.see_first(places.unique[: places.num_unique])
        DeviceBatch(batch, self._prefetcher, self.stepper).step(gradients)

    def moved(self) -> Moved:
        """Return what was found and moved since the table was made, and how long its threads were at it."""
        return self._prefetcher.moved()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have all rows stand still: nothing is on its way, and what was announced waits."""
        if self._prefetcher.closed:
            yield
            return
        with self._prefetcher.paused():
            yield
        self.stepper.set_clock()

    def close(self) -> None:
        """End the threads; rows on the device are gone then."""
        if not self._prefetcher.closed:
            self._prefetcher.close()

    # -- for steps that are launched as a whole ------------------------------------------------------------------------

    def take_next(self) -> tuple[PrefetchedBatch, BatchPlaces]:
        """Return the next batch announced, on whose rows the current stream waits; `stepped` or `done_with` follows."""
        self._must_be_open()
        batch = self._next(None, insert=True)
        return batch, self._prefetcher.take(batch)

    def gather(self, places: BatchPlaces, unique: Tensor) -> Tensor:
        """Return the values of a batch's look-ups, and count them."""
        self.stepper.touch(unique, places.num)
        return self.stepper.gather(places)

    def stepped(self, batch: PrefetchedBatch, places: BatchPlaces) -> None:
        """Note that a batch was looked up and its rows stepped."""
        self._lookup.note(places.num_unique)
        self.stepper.stepped()
        self._prefetcher.done_with(batch)

    def done_with(self, batch: PrefetchedBatch) -> None:
        """Let a batch go."""
        self._prefetcher.done_with(batch)

    def quiet(self) -> AbstractContextManager[None]:
        """Have nothing planned or moved for a moment, and all as it is."""
        return self._prefetcher.quiet()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _next(self, keys: ArrayLike | Tensor | None, *, insert: bool) -> PrefetchedBatch:
        """Return the first announced batch where it is the one that is wanted, else another one."""
        if keys is None:
            if not self._announced:
                raise TableError("no batch is announced", hint="announce its keys, or give them")
            return self._announced.popleft()
        own = self._own(keys)
        if insert and self._announced and _equal(own, self._announced[0].keys):
            return self._announced.popleft()
        return self._prefetcher.announce(own, insert=insert)

    def _own(self, keys: ArrayLike | Tensor) -> DeviceKeys:
        """Return keys as a vector; those of other shards are refused."""
        if isinstance(keys, Tensor) and self._shards[1] == 1 and keys.dtype == torch.int64 and keys.dim() == 1:
            return keys
        array = as_keys(keys.cpu().numpy() if isinstance(keys, Tensor) else keys)
        return own_keys(array, *self._shards)

    def _must_be_open(self) -> None:
        self._store.must_be_open()
        self._prefetcher.must_work()


def _equal(one: DeviceKeys, other: DeviceKeys) -> bool:
    """Say whether two batches have the same keys."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.device == other.device and torch.equal(one, other)
    return np.array_equal(_numpy(one), _numpy(other))


def _numpy(keys: DeviceKeys) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return keys.cpu().numpy() if isinstance(keys, Tensor) else keys
