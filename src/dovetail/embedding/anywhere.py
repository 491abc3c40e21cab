"""Rows wherever they lie, moving none: read, known, deleted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.disk_tier import DiskTier
from dovetail.embedding.errors import TableError
from dovetail.embedding.host_tier import HostTier
from dovetail.embedding.index import Index
from dovetail.embedding.lifting import Lifting
from dovetail.embedding.places import NOWHERE, device_slot_at, in_host, on_device, on_disk, record_at, slot_at
from dovetail.embedding.room import Room
from dovetail.embedding.row_facts import Facts, RowFacts
from dovetail.embedding.slot_line import HOME
from dovetail.embedding.tier import FactsAbove, TierAbove

Keys = NDArray[np.int64]


class Anywhere:
    """What can be done to a row without knowing where it is; whoever calls holds the store's lock."""

    def __init__(
        self,
        index: Index,
        host: HostTier,
        disk: DiskTier | None,
        *,
        facts: RowFacts,
        room: Room,
        lifting: Lifting,
        row_width: int,
    ) -> None:
        self._index, self._host, self._disk = index, host, disk
        self._facts, self._room, self._lifting, self._row_width = facts, room, lifting, row_width
        self.above: TierAbove | None = None
        """The device tier, once there is one."""

    def read(self, keys: Keys) -> NDArray[np.float32]:
        """Return whole rows, values and state; a key without one gives zeros."""
        rows = np.zeros((len(keys), self._row_width), dtype=np.float32)
        places = self._facts.of(keys).places
        for tier, here, number_at in (
            (self._host, in_host(places), slot_at),
            (self._disk, on_disk(places), record_at),
            (self.above, on_device(places), device_slot_at),
        ):
            at = np.flatnonzero(here).astype(np.int32)
            if len(at):
                if tier is None:
                    raise TableError("the table has no disk tier", hint="give it a folder for its cold rows")
                tier.read_into(keys[at], number_at(places[at]), rows, at)
        return rows

    def facts(self, keys: Keys) -> Facts:
        """Return what is known of rows; a key without one lies nowhere."""
        facts = self._facts.of(keys)
        at = np.flatnonzero(on_device(facts.places))
        if self.above is not None and len(at):
            above = self.above.facts_at(device_slot_at(facts.places[at]))
            facts.seen[at], facts.counts[at], facts.states[at] = above.seen, above.counts, above.states
        return facts

    def note_facts_above(self) -> None:
        """Write what the device knows of its rows into the index."""
        if self.above is not None:
            above = self.all_above(self.above)
            facts = Facts(np.empty(0, dtype=np.int32), above.seen, above.counts, above.states)
            self._facts.set(above.keys, facts)

    def all_above(self, tier: TierAbove) -> FactsAbove:
        """Return what the device knows of all its rows."""
        return tier.facts_at(tier.taken())

    def recall(self, keys: Keys) -> None:
        """Bring those rows of keys that are on the device down."""
        if self.above is None or not self._lifting.num_rows:
            return
        places = self._facts.of(keys).places
        numbers = np.unique(device_slot_at(places[on_device(places)]))
        if len(numbers):
            facts = self.above.facts_at(numbers)
            rows = np.empty((len(numbers), self._row_width), dtype=np.float32)
            self.above.read_into(facts.keys, numbers, rows, np.arange(len(numbers), dtype=np.int32))
            self._lifting.lower(facts.keys, rows, facts.columns)
            self.above.release(numbers)

    def remove(self, keys: Keys) -> None:
        """Delete rows of distinct keys; keys without a row are left out."""
        places = self._facts.of(keys).places
        keys, places = keys[places != NOWHERE], places[places != NOWHERE]
        slots = slot_at(places[in_host(places)])
        homes = self._host.lines[slots, HOME]
        if self._disk is not None:
            self._disk.release(np.concatenate([record_at(places[on_disk(places)]), homes[homes >= 0]]))
        self._host.release(slots)
        numbers = device_slot_at(places[on_device(places)])
        if self.above is not None and len(numbers):
            self.above.release(numbers)
            self._lifting.num_rows -= len(numbers)
        self._index.remove(keys)
        self._room.generation += 1
