"""Finding a batch's rows on the device: its distinct keys, their slots, and slots for those that are missing."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.device.mover import Mover, Rising, Sinking
from dovetail.embedding.device.plan import Grouped, Places, Plan, group
from dovetail.embedding.device.streams import Streams
from dovetail.embedding.device_tier import DeviceTier
from dovetail.embedding.errors import TableError
from dovetail.embedding.store import Store
from dovetail.splitmix import GOLDEN_NUMBER, mix
from dovetail.units import format_bytes

MOST_EVICTED, EVICTED_SHIFT = 32_768, 7
"""Rows go down a 128th of the slots at a time, at most so many: few searches for victims, no long wait for them."""


@dataclass(slots=True)
class Missing:
    """Distinct keys that are not on the device: their numbers among a batch's distinct ones, there and here."""

    at: Tensor
    keys: Tensor
    here: NDArray[np.int64]


class Finder:
    """Works on one batch at a time, on the current stream; the rest is the planner's."""

    def __init__(self, tier: DeviceTier, store: Store, streams: Streams, mover: Mover, lock: threading.RLock) -> None:
        self._tier, self._store, self._streams, self._mover, self._lock = tier, store, streams, mover, lock
        mixed = int(mix(np.uint64(store.seed % 2**64) ^ np.uint64(GOLDEN_NUMBER)))
        self._seed = mixed - 2**64 if mixed >= 2**63 else mixed
        self._scale = torch.tensor(store.scale, dtype=torch.float64, device=tier.device)
        self.num_batches = self.num_unique = self.num_missing = self.num_evicted = 0

    def find(self, plan: Plan, *, oldest: int) -> bool:
        """Say where a batch's rows lie, those missing included; False where they do not fit beside those in use.

        Rows that batches from `oldest` on need stay.
        """
        tier, streams = self._tier, self._streams
        streams.wait_for(plan.given)
        keys = plan.keys if isinstance(plan.keys, Tensor) else streams.up(plan.keys)
        if not plan.inputs:
            plan.inputs = tuple(streams.up(array) for array in plan.arrays)
        grouped = group(keys.to(tier.device))
        self._must_fit(len(grouped.unique))
        slots = tier.find(grouped.unique)
        tier.kernels.need(tier.needed, slots, plan.number)
        missing = self._missing(slots, grouped, insert=plan.insert)
        if len(missing.here) and not self._make_room(len(missing.here), oldest=oldest):
            return False
        numbers = tier.take(len(missing.here))
        new = streams.up(numbers)
        if len(numbers):
            self._begin(missing.keys, new, plan.number)
            slots[missing.at] = new
        plan.places = self._places(slots, grouped)
        plan.generation, plan.num_missing = tier.generation, len(numbers)
        plan.planned = streams.moment()
        plan.kept += [keys, grouped, missing]
        self.num_batches += 1
        self.num_unique += plan.places.num_unique
        self.num_missing += len(numbers)
        self._mover.ask(Rising(plan, missing.here, numbers, new))  # and be it none: rows may be on their way for others
        return True

    def _must_fit(self, num_unique: int) -> None:
        tier = self._tier
        if num_unique > tier.capacity:
            raise TableError(
                f"a batch has {num_unique:,} distinct keys, and device_bytes = {format_bytes(tier.device_bytes)} has "
                f"room for {tier.capacity:,} rows",
                hint=f"give device_bytes of at least {(num_unique + 1) * tier.slot_bytes}, or smaller batches",
            )

    def _missing(self, slots: Tensor, grouped: Grouped, *, insert: bool) -> Missing:
        """Return the distinct keys that need a slot: without `insert`, those alone that have a row below."""
        at = (slots < 0).nonzero().squeeze(1)
        keys = grouped.unique[at]
        here: NDArray[np.int64] = keys.cpu().numpy()
        if insert or not len(here):
            return Missing(at, keys, here)
        with self._lock:  # the index knows rows that are still on their way down
            have = self._store.lifting.have_rows(here)
        mask = torch.from_numpy(have).to(at.device)
        return Missing(at[mask], keys[mask], here[have])

    def _begin(self, keys: Tensor, slots: Tensor, batch: int) -> None:
        """Give rows that come, or are made, their slots: with first values, which rows from below will replace."""
        tier, store = self._tier, self._store
        tier.begin(keys, slots, batch=batch)
        tier.kernels.fill_first(tier.rows, slots, keys, store.width, self._seed, self._scale, store.first_state)

    def _places(self, slots: Tensor, grouped: Grouped) -> Places:
        """Return where each look-up finds its row, and who asks for each distinct one."""
        places = Places.empty(len(grouped.order), len(slots), slots.device)
        self._tier.kernels.place(grouped.order, grouped.number_of, slots, self._tier.nowhere, places.numbers)
        return places

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
        numbers: NDArray[np.int32] = slots.cpu().numpy()
        where = slots.long()
        keys, rows = tier.keys[where], tier.rows[where]
        facts = torch.stack([each[where].to(torch.int32) for each in (tier.seen, tier.counts, tier.states)], dim=1)
        copied_out = streams.moment()
        with streams.on(streams.sinking):
            streams.wait_for(copied_out)
            down = [streams.down(each) for each in (keys, rows, facts)]
            self._mover.ask(Sinking(down[0], down[1], down[2], streams.moment(), (keys, rows, facts)))
        tier.let_go(slots, numbers)
        self.num_evicted += len(numbers)
        return True
