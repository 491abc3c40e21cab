"""Finding batches' rows on the device: their distinct keys, the slots of these, and new slots for those missing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.errors import TableError
from dovetail.embedding.places import NOWHERE
from dovetail.embedding.store import TieredStore
from dovetail.embedding.tiers.device.migrator import DemotionRequest, Migrator, PromotionRequest
from dovetail.embedding.tiers.device.prefetched_batch import (
    BatchPlaces,
    Grouped,
    Layout,
    PrefetchedBatch,
    group,
    layout_of,
    places_size,
)
from dovetail.embedding.tiers.device.streams import StreamEvent, Streams
from dovetail.embedding.tiers.device.tier import DeviceTier
from dovetail.embedding.tiers.device.torch_kernels import TOLD
from dovetail.splitmix import GOLDEN_NUMBER, mix
from dovetail.units import format_bytes

MOST_EVICTED, EVICTED_SHIFT = 131_072, 6
"""Rows go down a 64th of the slots at a time, at most so many: few searches for victims, no long wait for them."""
FEWEST_EXPECTED = 1024


@dataclass(slots=True)
class MissingKeys:
    """Distinct keys that are not on the device: there and here, and what a search says of each."""

    keys: Tensor
    here: NDArray[np.int64]
    told: Tensor
    """Which distinct key of the search it is, and the last batch that needs it."""


class KeyLookup:
    """Works on the current stream; the rest is the prefetcher's."""

    def __init__(
        self, tier: DeviceTier, store: TieredStore, streams: Streams, migrator: Migrator, lock: threading.RLock
    ) -> None:
        self._tier, self._store, self._streams, self._migrator, self._lock = tier, store, streams, migrator, lock
        mixed = int(mix(np.uint64(store.seed % 2**64) ^ np.uint64(GOLDEN_NUMBER)))
        self._seed = mixed - 2**64 if mixed >= 2**63 else mixed
        self._scale = torch.tensor(store.scale, dtype=torch.float64, device=tier.device)
        self._expected = FEWEST_EXPECTED
        """How many keys are likely to be missing: these come with the counts, in one copy."""
        self.num_rounds = self.num_batches = self.num_unique = self.num_missing = self.num_evicted = 0
        self.waited_s = 0.0

    def find(self, batches: list[PrefetchedBatch], *, oldest: int) -> bool:
        """Say where batches' rows lie, those missing included; False where they do not fit beside those in use.

        Rows that batches from `oldest` on need stay. Batches that insert nothing come alone.
        """
        tier, streams = self._tier, self._streams
        if not batches[0].num_keys:
            return self._find_nothing(batches)
        layout = layout_of(tuple(batch.num_keys for batch in batches), tier.device)
        keys = self._join(batches)
        grouped = group(keys[: layout.num_keys], layout)
        slots = torch.empty(layout.num_keys, dtype=torch.int32, device=tier.device)
        missing, num_unique = self._look(grouped, keys[layout.num_keys :], slots)
        self._must_fit(max(num_unique))
        if not batches[0].insert:
            missing = self._below(missing)
        if len(missing.here) and not self._make_room(len(missing.here), oldest=oldest):
            return False
        numbers = tier.take(len(missing.here))
        new = streams.up(numbers)
        if len(numbers):
            self._begin(missing, new, slots)
        self._place(batches, grouped, slots, num_unique)
        planned = streams.event()
        for batch in batches:
            batch.generation, batch.planned = tier.generation, planned
            batch.kept += [keys, missing, new]
        self.num_rounds += 1
        self.num_batches += len(batches)
        self.num_unique += sum(num_unique)
        self.num_missing += len(numbers)
        # And be it none: rows may be on their way for others.
        self._migrator.ask(PromotionRequest(batches, missing.here, numbers, new))
        return True

    def _find_nothing(self, batches: list[PrefetchedBatch]) -> bool:
        """Plan batches without a key."""
        for batch in batches:
            self._streams.wait_for(batch.given)
            numbers = torch.zeros(places_size(0), dtype=torch.int32, device=self._tier.device)
            batch.places, batch.generation = BatchPlaces(numbers, 0, 0), self._tier.generation
            batch.planned = self._streams.event()
        self.num_batches += len(batches)
        self._migrator.ask(
            PromotionRequest(batches, np.empty(0, np.int64), np.empty(0, np.int32), torch.empty(0, dtype=torch.int32))
        )
        return True

    def _join(self, batches: list[PrefetchedBatch]) -> Tensor:
        """Return the keys of batches one after the other, then the batches' numbers, on the device."""
        for batch in batches:
            self._streams.wait_for(batch.given)
        numbers = self._streams.up(np.array([batch.number for batch in batches]))
        return torch.cat([*(batch.there for batch in batches if batch.there is not None), numbers])

    def _look(self, grouped: Grouped, batch_numbers: Tensor, slots: Tensor) -> tuple[MissingKeys, list[int]]:
        """Find the distinct keys' slots; return those missing, and how many distinct ones each batch has."""
        tier, layout = self._tier, grouped.layout
        told = torch.zeros(TOLD + layout.num_keys, dtype=torch.int64, device=tier.device)
        missing = torch.empty((2, layout.num_keys), dtype=torch.int32, device=tier.device)
        tier.kernels.look(tier.index, tier.keys, tier.needed, grouped, batch_numbers, slots, told, missing)
        num_batches = layout.num_batches
        told[1 : 1 + 2 * num_batches] = grouped.ranks[layout.edges]
        here = self._hear(told, TOLD + min(self._expected, layout.num_keys))
        count = int(here[0])
        if TOLD + count > len(here):
            here = self._hear(told, TOLD + count)
        self._expected = max(FEWEST_EXPECTED, count + count // 2)
        first, last = here[1 : 1 + num_batches], here[1 + num_batches : 1 + 2 * num_batches]
        found = MissingKeys(told[TOLD : TOLD + count], here[TOLD : TOLD + count], missing)
        return found, (last - first + 1).tolist()

    def _hear(self, told: Tensor, size: int) -> NDArray[np.int64]:
        """Return the first of what the device tells, once it is here."""
        here = self._streams.down(told[:size])
        self._wait(self._streams.event())
        return here.numpy()

    def _wait(self, event: StreamEvent) -> None:
        begun_s = time.perf_counter()
        event.synchronize()
        self.waited_s += time.perf_counter() - begun_s

    def _must_fit(self, num_unique: int) -> None:
        tier = self._tier
        if num_unique > tier.capacity:
            raise TableError(
                f"a batch has {num_unique:,} distinct keys, and device_bytes = {format_bytes(tier.device_bytes)} has "
                f"room for {tier.capacity:,} rows",
                hint=f"give device_bytes of at least {(num_unique + 1) * tier.slot_bytes}, or smaller batches",
            )

    def _below(self, missing: MissingKeys) -> MissingKeys:
        """Return those alone that have a row below."""
        with self._lock:  # the index knows rows that are still on their way down
            have = self._store.metadata(missing.here).places != NOWHERE
        at = torch.from_numpy(np.flatnonzero(have)).to(self._tier.device)
        return MissingKeys(missing.keys[at], missing.here[have], missing.told[:, at].contiguous())

    def _begin(self, missing: MissingKeys, new: Tensor, slots: Tensor) -> None:
        """Give rows that come, or are made, their slots: with first values, which rows from below will replace."""
        tier, store = self._tier, self._store
        tier.begin(missing.keys, new, missing=missing.told, into=slots)
        tier.kernels.fill_first(tier.rows, new, missing.keys, store.width, self._seed, self._scale, store.first_state)

    def _place(self, batches: list[PrefetchedBatch], grouped: Grouped, slots: Tensor, num_unique: list[int]) -> None:
        """Say where each look-up finds its row, and who asks for each distinct one."""
        layout: Layout = grouped.layout
        sizes = [places_size(size) for size in layout.sizes]
        out = torch.zeros(sum(sizes), dtype=torch.int32, device=slots.device)
        self._tier.kernels.place(grouped, slots, self._tier.nowhere, out)
        for batch, numbers, num_keys, count in zip(
            batches, torch.split(out, sizes), layout.sizes, num_unique, strict=True
        ):
            batch.places = BatchPlaces(numbers, num_keys, count)

    def _make_room(self, num_rows: int, *, oldest: int) -> bool:
        """Have so many free slots, the least used rows that no batch from `oldest` on needs going down."""
        tier, streams = self._tier, self._streams
        short = num_rows - tier.num_free
        if short <= 0:
            return True
        wanted = max(short, min(tier.capacity >> EVICTED_SHIFT, MOST_EVICTED))
        slots = tier.victims(wanted, oldest=oldest, step=self._store.clock.step)
        if len(slots) < short:
            return False
        told = streams.down(slots)
        self._wait(streams.event())
        numbers: NDArray[np.int32] = told.numpy()
        where = slots.long()
        keys, rows = tier.keys[where], tier.rows[where]
        known = torch.stack([each[where].to(torch.int32) for each in (tier.seen, tier.counts, tier.states)], dim=1)
        copied_out = streams.event()
        with streams.on(streams.sinking):
            streams.wait_for(copied_out)
            down = [streams.down(each) for each in (keys, rows, known)]
            self._migrator.ask(DemotionRequest(down[0], down[1], down[2], streams.event(), (keys, rows, known)))
        tier.let_go(slots, numbers)
        self.num_evicted += len(numbers)
        return True
