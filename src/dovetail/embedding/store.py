"""Rows in tiers under one index: those of a batch are found, made and brought up. One thread at a time; see `Table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.errors import TableError
from dovetail.embedding.eviction import Clock, Eviction, KeyLog
from dovetail.embedding.first_values import fill_first_values, first_values
from dovetail.embedding.index import Index, size_for
from dovetail.embedding.kernels import batches as batch_kernels
from dovetail.embedding.kernels import batches as distinct_kernels
from dovetail.embedding.kernels import metadata as fact_kernels
from dovetail.embedding.kernels import metadata as kernels
from dovetail.embedding.kernels import moves
from dovetail.embedding.places import (
    MOST_SLOTS,
    NOWHERE,
    at_slot,
    device_slot_at,
    in_host,
    on_device,
    on_disk,
    record_at,
    slot_at,
)
from dovetail.embedding.promotion import Promotion
from dovetail.embedding.row_metadata import CHANGED, DIRTY, HOME, SEEN, STATE, TAKEN
from dovetail.embedding.row_optimizer import Kernel, RowOptimizer
from dovetail.embedding.thread_pool import RowThreads
from dovetail.embedding.tiers.disk.record import Precision, RecordLayout
from dovetail.embedding.tiers.disk.tier import LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES, DiskTier
from dovetail.embedding.tiers.host import SLOT_BYTES, HostTier
from dovetail.embedding.tiers.tier import MOST_AT_ONCE, MetadataAbove, Tier, TierAbove


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """Rows and bytes by tier, and what was moved since the table was made."""

    num_rows: int
    host_rows: int
    disk_rows: int
    device_rows: int
    memory_bytes: int
    budget_bytes: int
    index_bytes: int
    host_row_bytes: int
    disk_bytes: int
    device_bytes: int
    num_looked_up: int
    num_fetched: int
    num_evicted: int
    num_written: int
    num_expired: int

    @property
    def miss_ratio(self) -> float:
        """Return fetches from below, prefetches included, per row looked up."""
        return self.num_fetched / self.num_looked_up if self.num_looked_up else 0.0


class Held(NamedTuple):
    """Where the rows of a batch lie: a slot and a code a key, and the distinct slots; see `kernels.moves.resolve`."""

    slots: NDArray[np.int32]
    codes: NDArray[np.int32]
    unique: NDArray[np.int32]


class Resolved(NamedTuple):
    """What a search for a batch found: rows in the host tier, and keys whose rows are not there."""

    held: Held
    num_unique: int
    num_new: int
    absent: NDArray[np.int32]
    absent_at: NDArray[np.int64]
    below: NDArray[np.int64]


Keys = NDArray[np.int64]


class RowMetadata(NamedTuple):
    """One number a row each."""

    places: NDArray[np.int32]
    seen: NDArray[np.int32]
    counts: NDArray[np.int32]
    states: NDArray[np.int32]


class RowFacts:
    """The facts of all rows, in whichever tier they lie."""

    def __init__(self, index: Index, host: HostTier) -> None:
        """Look at an index and the tier it points into; both change as rows do."""
        self._index, self._host = index, host

    def of(self, keys: Keys) -> RowMetadata:
        """Return what is known of the rows of keys; a key without a row lies nowhere."""
        facts = RowMetadata(*(np.zeros(len(keys), dtype=np.int32) for _ in range(4)))
        index = self._index
        kernels.read_facts(
            *(index.keys, index.places, index.seen, index.counts, index.states), self._host.lines, keys, *facts
        )
        return facts

    def set(self, keys: Keys, facts: RowMetadata) -> None:
        """Set what is known of rows that there are, places aside."""
        index = self._index
        kernels.write_facts(
            *(index.keys, index.places, index.seen, index.counts, index.states), self._host.lines, keys, *facts[1:]
        )

    def keys(self) -> Keys:
        """Return every key that has a row."""
        keys = np.empty(self._index.num_rows, dtype=np.int64)
        kernels.all_keys(self._index.keys, self._index.places, keys)
        return keys

    def need(self, keys: Keys, batch: int) -> None:
        """Keep those rows of keys that are in the host tier until `batch`, as long as there is room elsewhere."""
        slots = np.empty(len(keys), dtype=np.int32)
        kernels.find_slots(self._index.keys, self._index.places, keys, slots)
        kernels.need_slots(self._host.lines, slots, batch)

    def not_on_device(self, keys: Keys) -> Keys:
        """Return those keys whose rows are in the tiers below a device's, or that have none."""
        kept: Keys = keys[~on_device(self.of(keys).places)]
        return kept

    def age(self) -> None:
        """Halve all access counts."""
        kernels.age(self._index.places, self._index.counts, self._host.lines, self._host.top)

    def expired(self, before: int, below: int) -> Keys:
        """Return the keys of rows last seen before the step `before` or counted less than `below`."""
        index = self._index
        found: list[Keys] = []
        start = 0
        while start < index.size:
            keys = np.empty(MOST_AT_ONCE, dtype=np.int64)
            count, start = kernels.find_expired(
                *(index.keys, index.places, index.seen, index.counts, self._host.lines, before, below, start, keys)
            )
            found.append(keys[:count].copy())
        return np.concatenate(found)

    def mark_pending(self, *, everything: bool) -> int:
        """Mark what a checkpoint has to write: every row, or those changed since the last one; return how many."""
        index, host = self._index, self._host
        return int(kernels.mark_pending(index.places, index.states, host.lines, host.top, everything))

    def some_pending(self, start: int) -> tuple[Keys, int]:
        """Return keys still to be written from position `start` of the index on, and where to go on."""
        index = self._index
        keys = np.empty(MOST_AT_ONCE, dtype=np.int64)
        count, end = kernels.find_pending(index.keys, index.places, index.states, self._host.lines, start, keys)
        return keys[:count], int(end) if end < index.size else 0


Slots = NDArray[np.int32]
Floats = NDArray[np.float32]


class Whereabouts(NamedTuple):
    """The slots of a batch's rows, and when that was so."""

    slots: Slots
    as_of: tuple[int, int]


class Distinct:
    """What a store does with distinct keys; whoever calls holds the store's lock."""

    def __init__(
        self,
        index: Index,
        host: HostTier,
        room: Eviction,
        clock: Clock,
        crew: RowThreads,
        *,
        hold: Callable[[Keys], Held | None],
        change: Callable[[Slots], None],
    ) -> None:
        """Share the work among a crew; `hold` finds rows that are not all in the host tier.

        `change` says that rows there were changed, and lets their records below die.
        """
        self._index, self._host, self._room, self._clock = index, host, room, clock
        self._crew, self._hold, self._change = crew, hold, change
        self._spared = self._misses = 0
        """How many searches were left to `hold` since rows were missing last, and how many are to be."""

    @property
    def as_of(self) -> tuple[int, int]:
        """Return what changes when a row leaves its slot."""
        return self._room.generation, self._room.num_evicted

    def find(self, keys: Keys) -> Slots | None:
        """Return the slots of keys, with all their rows brought up or made; None where they do not fit at once."""
        if self._spared < self._misses:  # rows were missing lately: the search that brings them up does it at once
            self._spared += 1
        else:
            index, lines, operation = self._index, self._host.lines, self._clock.next_operation()
            slots = np.empty(len(keys), dtype=np.int32)

            def find(first: int, last: int) -> int:
                part = keys[first:last], operation, slots[first:last]
                return int(distinct_kernels.find_and_hold(index.keys, index.places, lines, *part))

            self._spared = 0
            if not sum(self._crew.share(len(keys), find)):
                self._misses = 0
                return slots
            self._misses = min(2 * self._misses + 1, 15)
        held = self._hold(keys)
        return None if held is None else held.slots

    def read(self, slots: Slots, out: Floats) -> None:
        """Copy the values of found rows, and count an access of each."""
        rows, lines, step = self._host.rows, self._host.lines, self._clock.step

        def read(first: int, last: int) -> None:
            distinct_kernels.count_accesses(lines, slots[first:last], step)
            batch_kernels.gather(rows, slots[first:last], out[first:last])

        self._crew.share(len(slots), read)

    def read_again(self, slots: Slots, positions: Slots, out: Floats) -> None:
        """Copy the values at some positions of a batch that was read before."""
        rows = self._host.rows

        def read(first: int, last: int) -> None:
            distinct_kernels.gather_at(rows, slots, positions[first:last], out)

        self._crew.share(len(positions), read)

    def step(self, slots: Slots, gradients: Floats, kernel: Kernel, settings: Floats, *, scale: float) -> None:
        """Step found rows by their gradients times `scale`, multiplied where they are if they can be written."""
        rows, lines, factor, width = self._host.rows, self._host.lines, np.float32(scale), gradients.shape[1]

        def step(first: int, last: int) -> int:
            part = gradients[first:last]
            if not part.flags.writeable:
                part = part * factor
            elif scale != 1.0:
                np.multiply(part, factor, out=part)
            kernel(rows, slots[first:last], part, width, settings)
            return int(distinct_kernels.mark_stepped(lines, slots[first:last]))

        if sum(self._crew.share(len(slots), step)):  # some have records below: one thread counts those that live
            self._change(slots)


class Anywhere:
    """What can be done to a row without knowing where it is; whoever calls holds the store's lock."""

    def __init__(
        self,
        index: Index,
        host: HostTier,
        disk: DiskTier | None,
        *,
        facts: RowFacts,
        room: Eviction,
        lifting: Promotion,
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

    def facts(self, keys: Keys) -> RowMetadata:
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
            facts = RowMetadata(np.empty(0, dtype=np.int32), above.seen, above.counts, above.states)
            self._facts.set(above.keys, facts)

    def all_above(self, tier: TierAbove) -> MetadataAbove:
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


FIRST_INDEX_SIZE = 64
NO_ROWS = np.empty(0, dtype=np.int32)
NO_RECORDS = np.zeros(1, dtype=np.int64)


class TieredStore:
    """Index, host tier and disk tier under one budget of `host_bytes`; what is held can be read and stepped."""

    def __init__(
        self,
        *,
        width: int,
        optimizer: RowOptimizer,
        seed: int,
        scale: float,
        host_bytes: int,
        host_rows: int | None,
        folder: Path | None,
        cold_precision: Precision,
        segment_bytes: int | None = None,
        key_log: KeyLog | None = None,
        expected_rows: int | None = None,
        threads: int = 1,
    ) -> None:
        self.width, self.seed, self.scale = width, seed, scale
        self.first_state = float(np.float32(optimizer.first_state))
        layout = RecordLayout(width=width, state_width=optimizer.state_width(width), precision=cold_precision)
        self._row_width = width + layout.state_width
        slot_bytes = self._row_width * 4 + SLOT_BYTES
        self._index = Index(FIRST_INDEX_SIZE if expected_rows is None else size_for(expected_rows))
        reserved = (host_bytes - self._index.used_bytes) // slot_bytes
        if reserved < 1:
            raise TableError(
                f"host_bytes = {host_bytes} has no room for a row of {slot_bytes} bytes and its index",
                hint=f"give at least {self._index.used_bytes + slot_bytes}",
            )
        self._host = HostTier(min(reserved, host_rows or reserved, MOST_SLOTS), self._row_width)
        if segment_bytes is None:
            segment_bytes = min(max(host_bytes // 8, SMALLEST_SEGMENT_BYTES), LARGEST_SEGMENT_BYTES)
        self._disk = DiskTier(folder, layout, segment_bytes) if folder is not None else None
        self._tiers: tuple[Tier, ...] = (self._host, self._disk) if self._disk else (self._host,)
        self.clock = Clock()
        self.facts = RowFacts(self._index, self._host)
        self.room = Eviction(
            index=self._index,
            host=self._host,
            disk=self._disk,
            host_bytes=host_bytes,
            clock=self.clock,
            key_log=key_log,
        )
        self._crew = RowThreads(threads)
        self.distinct = Distinct(
            *(self._index, self._host, self.room, self.clock, self._crew),
            hold=lambda keys: self.hold(keys, insert=True),
            change=self._change,
        )
        self.lifting = Promotion(self._index, self._host, self._disk, self.room, self.clock)
        self.anywhere = Anywhere(
            *(self._index, self._host, self._disk),
            facts=self.facts,
            room=self.room,
            lifting=self.lifting,
            row_width=self._row_width,
        )
        self.key_log = key_log
        self.closed = False
        self.num_fetched = 0
        self._held_in = -1
        self._held_keys, self._held = np.empty(0, dtype=np.int64), Held(*(NO_ROWS,) * 3)

    # -- rows of a batch -------------------------------------------------------------------------------------------

    def hold(self, keys: NDArray[np.int64], *, insert: bool) -> Held | None:
        """Return where the rows of a batch lie with all of them brought up, or None where they do not fit at once.

        A key without a row gets one with its first values, or the slot -1 where `insert` is off. No row returned is
        evicted before the next call.
        """
        if self._held_in == self.room.generation and np.array_equal(keys, self._held_keys):
            return self._held  # an update comes after a look-up of the same keys, mostly
        self.anywhere.recall(keys)
        found = self._resolve(keys)
        if found.num_new and insert:
            if not self._create_absent(keys, found):
                return None
            found = self._resolve(keys)
        if len(found.below):
            shifts = self.room.num_shifts
            if not self.room.make(len(found.below)):
                return None
            if self.room.num_shifts != shifts:
                found = self._resolve(keys)
            self._fetch(found.below)
        held = self._settle(found)
        if not found.num_new or insert:
            self.room.last_held = self.clock.operation
            self._held_in, self._held_keys, self._held = self.room.generation, keys.copy(), held
        return held

    def _resolve(self, keys: NDArray[np.int64]) -> Resolved:
        """Find the rows of a batch, and hold those in the host tier under this operation."""
        operation = self.clock.next_operation()  # a new number each time: marks of an earlier search may be out of date
        index = self._index
        slots, codes, unique, absent = (np.empty(len(keys), dtype=np.int32) for _ in range(4))
        absent_at, below = (np.empty(len(keys), dtype=np.int64) for _ in range(2))
        num_unique, num_absent, num_below, num_new = moves.resolve(
            *(index.keys, index.places, index.states, self._host.lines, keys, operation),
            *(slots, codes, unique, absent, absent_at, below),
        )
        return Resolved(
            Held(slots, codes, unique),
            *(num_unique, num_new, absent[:num_absent], absent_at[:num_absent], below[:num_below]),
        )

    def _settle(self, found: Resolved) -> Held:
        """Say where the rows lie that were brought up."""
        slots, codes, unique = found.held
        num_unique = moves.settle(
            *(self._index.places, self._host.lines, self.clock.operation, found.absent, found.absent_at),
            *(slots, codes, unique, found.num_unique),
        )
        return Held(slots, codes, unique[:num_unique])

    def _fetch(self, positions: NDArray[np.int64]) -> None:
        """Bring rows up from the tier below, given their positions in the index."""
        index, host = self._index, self._host
        records = record_at(index.places[positions])
        order = np.argsort(records)  # neighbours on disk are neighbours in the tables of pages
        records, positions = records[order], positions[order]
        slots = host.take(len(positions))
        try:
            self._below().read_into(index.keys[positions], records, host.rows, slots)
        except BaseException:
            host.release(slots)
            raise
        moves.move_up(
            *(index.keys, index.places, index.seen, index.counts, index.states),
            *(host.lines, host.keys, positions, slots),
        )
        self.num_fetched += len(positions)

    def _create_absent(self, keys: NDArray[np.int64], found: Resolved) -> bool:
        """Make rows for the keys that have none, with their first values; False where they do not fit."""
        new = np.unique(keys[found.absent[found.absent_at < 0]])
        if not self.room.make_in_index(len(new)) or not self.room.make(len(new) + len(found.below)):
            return False
        host = self._host
        slots = host.take(len(new))
        fill_first_values(host.rows, slots, new, self.width, self.seed, self.scale, np.float32(self.first_state))
        self._index.insert(new, at_slot(slots))
        host.begin(new, slots)
        host.lines[slots, TAKEN] = DIRTY
        host.lines[slots, STATE] = CHANGED
        host.lines[slots, SEEN] = self.clock.step
        return True

    # -- what is held ----------------------------------------------------------------------------------------------

    def gather(self, held: Held, out: NDArray[np.float32]) -> None:
        """Copy the values of held rows, one a key; keys without a row are left out."""
        batch_kernels.gather(self._host.rows, held.slots, out)

    def pool(
        self, held: Held, begins: NDArray[np.int64], ends: NDArray[np.int64], mean: bool, out: NDArray[np.float32]
    ) -> None:
        """Write the sum, or the mean, of each bag of held rows."""
        batch_kernels.pool(self._host.rows, held.slots, begins, ends, mean, out)

    def count(self, held: Held) -> None:
        """Count one access for every held row."""
        fact_kernels.count_rows(self._host.lines, held.unique, self.clock.step)

    def keep_until(self, held: Held, batch: int) -> None:
        """Keep held rows until `batch`, as long as there is room elsewhere."""
        fact_kernels.need_slots(self._host.lines, held.unique, batch)

    def keys_at(self, slots: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the keys of held rows."""
        return self._host.keys[slots]

    def step_rows(
        self, slots: NDArray[np.int32], sums: NDArray[np.float32], kernel: Kernel, settings: NDArray[np.float32]
    ) -> None:
        """Step distinct held rows by the sums of their gradients."""
        kernel(self._host.rows, slots, sums, self.width, settings)
        self._change(slots)

    def _change(self, slots: NDArray[np.int32]) -> None:
        """Say that rows in the host tier were changed: their records below are dead."""
        living = self._disk.segments.num_living if self._disk else NO_RECORDS
        fact_kernels.mark_changed(self._host.lines, slots, living, self._disk.segment_records if self._disk else 1)

    # -- whole rows ------------------------------------------------------------------------------------------------

    def put(self, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Set whole rows of distinct keys, making those that do not exist."""
        held = self.hold(keys, insert=True)
        if held is None:
            middle = len(keys) // 2
            self.put(keys[:middle], rows[:middle])
            self.put(keys[middle:], rows[middle:])
            return
        self._host.rows[held.slots] = rows
        self._change(held.unique)

    def first_rows(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values that rows of `keys` begin with."""
        return first_values(keys, width=self.width, seed=self.seed, scale=self.scale)

    # -- the rest --------------------------------------------------------------------------------------------------

    def stats(self, *, num_looked_up: int, num_expired: int) -> TableStats:
        """Return what the store holds and has done; look-ups and expired rows are counted by whoever asks."""
        host_rows, disk_rows, device_rows = self.rows_by_tier
        above = self.anywhere.above
        return TableStats(
            num_rows=self.num_rows,
            host_rows=host_rows,
            disk_rows=disk_rows,
            device_rows=device_rows,
            device_bytes=above.used_bytes if above else 0,
            memory_bytes=self.room.memory_bytes,
            budget_bytes=self.room.host_bytes,
            index_bytes=self._index.used_bytes,
            host_row_bytes=self._host.used_bytes,
            disk_bytes=self._disk.used_bytes if self._disk else 0,
            num_looked_up=num_looked_up,
            num_fetched=self.num_fetched,
            num_evicted=self.room.num_evicted,
            num_written=self.room.num_written,
            num_expired=num_expired,
        )

    @property
    def num_rows(self) -> int:
        """Return how many rows there are, in all tiers."""
        return self._index.num_rows

    @property
    def rows_by_tier(self) -> tuple[int, int, int]:
        """Return how many rows are in the host tier, below and on the device; one with a copy below is in the host."""
        host_rows, device_rows = self._host.num_rows, self.lifting.num_rows
        return host_rows, self.num_rows - host_rows - device_rows, device_rows

    @property
    def row_width(self) -> int:
        """Return the numbers of a row, values and state."""
        return self._row_width

    def must_be_open(self) -> None:
        """Refuse work after `close`."""
        if self.closed:
            raise TableError("the table is closed", hint="make a new one, or load its checkpoint")

    def _below(self) -> Tier:
        """Return the tier below, which there must be."""
        if self._disk is None:
            raise TableError("the table has no disk tier", hint="give it a folder for its cold rows")
        return self._disk

    def close(self) -> None:
        """Give back memory and files."""
        for tier in (*self._tiers, *([self.anywhere.above] if self.anywhere.above else [])):
            tier.close()
        self.lifting.close()
        self._crew.close()
        if self.key_log is not None:
            self.key_log.close()
