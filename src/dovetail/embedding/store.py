"""Rows in tiers under one index: found, made, brought up, read and stepped. One thread at a time; see `Table`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.errors import TableError
from dovetail.embedding.eviction import Clock, Eviction, KeyLog
from dovetail.embedding.hashing import fill_first_values, first_values
from dovetail.embedding.index import ENTRY_BYTES, FULLEST, Index, size_for
from dovetail.embedding.kernels import batches, metadata, moves
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
from dovetail.embedding.row_metadata import CHANGED, DIRTY, HOME, SEEN, STATE, TAKEN, RowMetadata
from dovetail.embedding.row_optimizer import Kernel, RowOptimizer
from dovetail.embedding.thread_pool import RowThreads
from dovetail.embedding.tiers.disk.record import Precision, RecordLayout
from dovetail.embedding.tiers.disk.tier import LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES, DiskTier
from dovetail.embedding.tiers.host import SLOT_BYTES, HostTier
from dovetail.embedding.tiers.tier import MOST_AT_ONCE, TierAbove
from dovetail.privacy.owed import OwedNoise

FIRST_INDEX_SIZE = 64
NO_ROWS = np.empty(0, dtype=np.int32)
NO_RECORDS = np.zeros(1, dtype=np.int64)
MOST_SPARED = 15
"""Batches of distinct keys that are left to the search which brings rows up, at most, after rows were missing."""

Keys = NDArray[np.int64]
Slots = NDArray[np.int32]
Floats = NDArray[np.float32]


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

    slots: Slots
    codes: NDArray[np.int32]
    unique: Slots


class Resolved(NamedTuple):
    """What a search for a batch found: rows in the host tier, and keys whose rows are not there."""

    held: Held
    num_unique: int
    num_new: int
    absent: NDArray[np.int32]
    absent_at: NDArray[np.int64]
    below: NDArray[np.int64]


class Whereabouts(NamedTuple):
    """The slots of a batch's rows, and when that was so: until a row leaves its slot, nobody searches again."""

    slots: Slots
    as_of: tuple[int, int]


def rows_that_fit(host_bytes: int, row_width: int) -> int:
    """Return how many rows of so many numbers, with what the index has of each, fit into so much memory."""
    return int(host_bytes / (row_width * 4 + SLOT_BYTES + ENTRY_BYTES / FULLEST))


class TieredStore:
    """Index, host tier and disk tier under one budget of `host_bytes`; what is held can be read and stepped.

    The `device` tier, where there is one, has a budget of its own. Whoever calls holds the table's lock.
    """

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
        device: TierAbove | None = None,
        owed: OwedNoise | None = None,
    ) -> None:
        self.width, self.seed, self.scale, self.owed = width, seed, scale, owed
        self.first_state = float(np.float32(optimizer.first_state))
        layout = RecordLayout(width=width, state_width=optimizer.state_width(width), precision=cold_precision)
        self.row_width = width + layout.state_width
        """The numbers of a row, values and state."""
        slot_bytes = self.row_width * 4 + SLOT_BYTES
        self._index = Index(FIRST_INDEX_SIZE if expected_rows is None else size_for(expected_rows))
        reserved = (host_bytes - self._index.used_bytes) // slot_bytes
        if reserved < 1:
            raise TableError(
                f"host_bytes = {host_bytes} has no room for a row of {slot_bytes} bytes and its index",
                hint=f"give at least {self._index.used_bytes + slot_bytes}",
            )
        self._host = HostTier(min(reserved, host_rows or reserved, MOST_SLOTS), self.row_width)
        if segment_bytes is None:
            segment_bytes = min(max(host_bytes // 8, SMALLEST_SEGMENT_BYTES), LARGEST_SEGMENT_BYTES)
        self._disk = DiskTier(folder, layout, segment_bytes) if folder is not None else None
        self.device = device
        self.clock = Clock()
        self.key_log = key_log
        self.eviction = Eviction(
            index=self._index,
            host=self._host,
            disk=self._disk,
            host_bytes=host_bytes,
            clock=self.clock,
            key_log=key_log,
        )
        self.promotion = Promotion(self._index, self._host, self._disk, self.eviction, self.clock)
        self._threads = RowThreads(threads)
        self.closed = False
        self.num_fetched = 0
        self._held_in = -1
        self._held_keys, self._held = np.empty(0, dtype=np.int64), Held(NO_ROWS, NO_ROWS, NO_ROWS)
        self._spared = self._misses = 0
        """How many searches for distinct keys were left to `hold` since rows were missing, and how many are to be."""

    # -- rows of a batch -----------------------------------------------------------------------------------------------

    def hold(self, keys: Keys, *, insert: bool) -> Held | None:
        """Return where the rows of a batch lie with all of them brought up, or None where they do not fit at once.

        A key without a row gets one with its first values, or the slot -1 where `insert` is off. No row returned is
        evicted before the next call.
        """
        eviction = self.eviction
        if self._held_in == eviction.generation and np.array_equal(keys, self._held_keys):
            return self._held  # an update comes after a look-up of the same keys, mostly
        self._recall(keys)
        found = self._resolve(keys)
        if found.num_new and insert:
            if not self._create_absent(keys, found):
                return None
            found = self._resolve(keys)
        if len(found.below):
            shifts = eviction.num_shifts
            if not eviction.make_room(len(found.below)):
                return None
            if eviction.num_shifts != shifts:
                found = self._resolve(keys)
            self._fetch(found.below)
        held = self._settle(found)
        if not found.num_new or insert:
            eviction.last_held = self.clock.operation
            self._held_in, self._held_keys, self._held = eviction.generation, keys.copy(), held
        return held

    def _resolve(self, keys: Keys) -> Resolved:
        """Find the rows of a batch, and hold those in the host tier under this operation."""
        operation = self.clock.next_operation()  # a new number each time: marks of an earlier search may be out of date
        index = self._index
        slots, codes, unique, absent = (np.empty(len(keys), dtype=np.int32) for _ in range(4))
        absent_at, below = (np.empty(len(keys), dtype=np.int64) for _ in range(2))
        num_unique, num_absent, num_below, num_new = moves.resolve(
            index.keys,
            index.places,
            index.states,
            self._host.lines,
            keys,
            operation,
            slots,
            codes,
            unique,
            absent,
            absent_at,
            below,
        )
        return Resolved(
            held=Held(slots, codes, unique),
            num_unique=num_unique,
            num_new=num_new,
            absent=absent[:num_absent],
            absent_at=absent_at[:num_absent],
            below=below[:num_below],
        )

    def _settle(self, found: Resolved) -> Held:
        """Say where the rows lie that were brought up."""
        slots, codes, unique = found.held
        num_unique = moves.settle(
            self._index.places,
            self._host.lines,
            self.clock.operation,
            found.absent,
            found.absent_at,
            slots,
            codes,
            unique,
            found.num_unique,
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
        moves.move_up(*index.arrays, host.lines, host.keys, positions, slots)
        self.num_fetched += len(positions)

    def _create_absent(self, keys: Keys, found: Resolved) -> bool:
        """Make rows for the keys that have none, with their first values; False where they do not fit."""
        new = np.unique(keys[found.absent[found.absent_at < 0]])
        eviction, host = self.eviction, self._host
        if not eviction.make_room_in_index(len(new)) or not eviction.make_room(len(new) + len(found.below)):
            return False
        slots = host.take(len(new))
        fill_first_values(host.rows, slots, new, self.width, self.seed, self.scale, np.float32(self.first_state))
        self._index.insert(new, at_slot(slots))
        host.begin(new, slots)
        host.lines[slots, TAKEN] = DIRTY
        host.lines[slots, STATE] = CHANGED
        host.lines[slots, SEEN] = self.clock.step
        return True

    def _recall(self, keys: Keys) -> None:
        """Bring those rows of keys that are on the device down."""
        device = self.device
        if device is None or not self.promotion.num_rows:
            return
        places = self.metadata(keys).places
        numbers = np.unique(device_slot_at(places[on_device(places)]))
        if len(numbers):
            known = device.metadata_at(numbers)
            rows = np.empty((len(numbers), self.row_width), dtype=np.float32)
            device.read_into(known.keys, numbers, rows, np.arange(len(numbers), dtype=np.int32))
            self.promotion.demote(known.keys, rows, known.columns)
            device.release(numbers)

    # -- what is held --------------------------------------------------------------------------------------------------

    def gather(self, held: Held, out: Floats) -> None:
        """Copy the values of held rows, one a key; keys without a row are left out."""
        batches.gather(self._host.rows, held.slots, out)
        self._add_owed(held.slots, out)

    def _add_owed(self, slots: Slots, values: Floats) -> None:
        """Add to the values of rows at slots what those owe; where the slot is -1, nothing."""
        if self.owed is not None:
            self.owed.read(values, self._host.keys[slots], self._host.rows, slots)

    def pool(self, held: Held, begins: NDArray[np.int64], ends: NDArray[np.int64], mean: bool, out: Floats) -> None:
        """Write the sum, or the mean, of each bag of held rows."""
        if self.owed is not None:
            values = np.empty((len(held.slots), self.width), dtype=np.float32)
            self.gather(held, values)
            batches.pool(values, np.arange(len(values), dtype=np.int32), begins, ends, mean, out)
            return
        batches.pool(self._host.rows, held.slots, begins, ends, mean, out)

    def count(self, held: Held) -> None:
        """Count one access for every held row."""
        batches.count_accesses(self._host.lines, held.unique, self.clock.step)

    def keep_until(self, held: Held, batch: int) -> None:
        """Keep held rows until `batch`, as long as there is room elsewhere."""
        metadata.need_slots(self._host.lines, held.unique, batch)

    def keys_at(self, slots: Slots) -> Keys:
        """Return the keys of held rows."""
        return self._host.keys[slots]

    def _change(self, slots: Slots) -> None:
        """Say that rows in the host tier were changed: their records below are dead."""
        living = self._disk.segments.num_living if self._disk else NO_RECORDS
        metadata.mark_changed(self._host.lines, slots, living, self._disk.segment_records if self._disk else 1)

    # -- batches of distinct keys, as servers have them: found, read and stepped in several threads; found once a step -

    @property
    def as_of(self) -> tuple[int, int]:
        """Return what changes when a row leaves its slot."""
        return self.eviction.generation, self.eviction.num_evicted

    def find_distinct(self, keys: Keys) -> Slots | None:
        """Return the slots of keys, with all their rows brought up or made; None where they do not fit at once."""
        if self._spared < self._misses:  # rows were missing lately: the search that brings them up does it at once
            self._spared += 1
        else:
            index, lines, operation = self._index, self._host.lines, self.clock.next_operation()
            slots = np.empty(len(keys), dtype=np.int32)

            def find(first: int, last: int) -> int:
                part = keys[first:last], operation, slots[first:last]
                return int(batches.find_and_hold(index.keys, index.places, lines, *part))

            self._spared = 0
            if not sum(self._threads.share(len(keys), find)):
                self._misses = 0
                return slots
            self._misses = min(2 * self._misses + 1, MOST_SPARED)
        held = self.hold(keys, insert=True)
        return None if held is None else held.slots

    def read_distinct(self, slots: Slots, out: Floats) -> None:
        """Copy the values of found rows, and count an access of each."""
        rows, lines, step = self._host.rows, self._host.lines, self.clock.step

        def read(first: int, last: int) -> None:
            batches.count_accesses(lines, slots[first:last], step)
            batches.gather(rows, slots[first:last], out[first:last])
            self._add_owed(slots[first:last], out[first:last])

        self._threads.share(len(slots), read)

    def read_again(self, slots: Slots, positions: NDArray[np.int32], out: Floats) -> None:
        """Copy the values at some positions of a batch that was read before."""
        rows = self._host.rows

        def read(first: int, last: int) -> None:
            batches.gather_at(rows, slots, positions[first:last], out)
            if self.owed is not None:
                part = out[positions[first:last]]
                self._add_owed(slots[positions[first:last]], part)
                out[positions[first:last]] = part

        self._threads.share(len(positions), read)

    def settle(self, slots: Slots, step: int) -> None:
        """Give rows that owe noise what they owed before a step, and the noise of the step."""
        if (owed := self.owed) is None:
            return

        def settle(first: int, last: int) -> None:
            mine = slots[first:last]
            owed.settle(self._host.rows, mine, self._host.keys[mine], self.width, step=step)

        self._threads.share(len(slots), settle)

    def step(self, slots: Slots, gradients: Floats, kernel: Kernel, settings: Floats, *, scale: float) -> None:
        """Step distinct rows by their gradients times `scale`, multiplied where they are if they can be written."""
        rows, lines, factor, width = self._host.rows, self._host.lines, np.float32(scale), gradients.shape[1]

        def step(first: int, last: int) -> int:
            part = gradients[first:last]
            if not part.flags.writeable:
                part = part * factor
            elif scale != 1.0:
                np.multiply(part, factor, out=part)
            kernel(rows, slots[first:last], part, width, settings)
            return int(batches.mark_stepped(lines, slots[first:last]))

        if sum(self._threads.share(len(slots), step)):  # some have records below: one thread counts those that live
            self._change(slots)

    # -- what is known of rows, whichever tier they lie in -------------------------------------------------------------

    def metadata(self, keys: Keys) -> RowMetadata:
        """Return what index and host tier know of rows: of those on a device that may be old; see `latest_metadata`.

        A key without a row lies nowhere.
        """
        known = RowMetadata(*(np.zeros(len(keys), dtype=np.int32) for _ in range(4)))
        metadata.read_metadata(*self._index.arrays, self._host.lines, keys, *known)
        return known

    def latest_metadata(self, keys: Keys) -> RowMetadata:
        """Return what is known of rows, from the device where they lie there; a key without one lies nowhere."""
        known = self.metadata(keys)
        at = np.flatnonzero(on_device(known.places))
        if self.device is not None and len(at):
            above = self.device.metadata_at(device_slot_at(known.places[at]))
            known.seen[at], known.counts[at], known.states[at] = above.seen, above.counts, above.states
        return known

    def set_metadata(
        self, keys: Keys, seen: NDArray[np.int32], counts: NDArray[np.int32], states: NDArray[np.int32]
    ) -> None:
        """Set what is known of rows that there are."""
        metadata.write_metadata(*self._index.arrays, self._host.lines, keys, seen, counts, states)

    def keys(self) -> Keys:
        """Return every key that has a row."""
        keys = np.empty(self._index.num_rows, dtype=np.int64)
        metadata.all_keys(self._index.keys, self._index.places, keys)
        return keys

    def need(self, keys: Keys, batch: int) -> None:
        """Keep those rows of keys that are in the host tier until `batch`, as long as there is room elsewhere."""
        metadata.need_slots(self._host.lines, self.slots_of(keys), batch)

    def slots_of(self, keys: Keys) -> Slots:
        """Return the slots of those keys whose rows are in the host tier, -1 for others."""
        slots = np.empty(len(keys), dtype=np.int32)
        metadata.find_slots(self._index.keys, self._index.places, keys, slots)
        return slots

    def not_on_device(self, keys: Keys) -> Keys:
        """Return those keys whose rows are in the tiers below a device's, or that have none."""
        kept: Keys = keys[~on_device(self.metadata(keys).places)]
        return kept

    def age_counts(self) -> None:
        """Halve all access counts."""
        metadata.age(self._index.places, self._index.counts, self._host.lines, self._host.top)
        if self.device is not None:
            self.device.age()

    def expired(self, *, before: int, below: int) -> Keys:
        """Return the keys of rows last seen before the step `before` or counted less than `below`."""
        index, device = self._index, self.device
        if device is not None:  # the index gets to know what the device knows
            above = device.metadata_at(device.taken())
            self.set_metadata(above.keys, above.seen, above.counts, above.states)
        found: list[Keys] = []
        start = 0
        while start < index.size:
            keys = np.empty(MOST_AT_ONCE, dtype=np.int64)
            count, start = metadata.find_expired(
                index.keys, index.places, index.seen, index.counts, self._host.lines, before, below, start, keys
            )
            found.append(keys[:count].copy())
        return np.concatenate(found)

    def mark_pending(self, *, everything: bool) -> int:
        """Mark what a checkpoint has to write: every row, or those changed since the last one; return how many."""
        index, host = self._index, self._host
        return int(metadata.mark_pending(index.places, index.states, host.lines, host.top, everything))

    def some_pending(self, start: int) -> tuple[Keys, int]:
        """Return keys still to be written from position `start` of the index on, and where to go on."""
        index = self._index
        keys = np.empty(MOST_AT_ONCE, dtype=np.int64)
        count, end = metadata.find_pending(index.keys, index.places, index.states, self._host.lines, start, keys)
        return keys[:count], int(end) if end < index.size else 0

    # -- whole rows ----------------------------------------------------------------------------------------------------

    def put(self, keys: Keys, rows: Floats) -> None:
        """Set whole rows of distinct keys, making those that do not exist."""
        held = self.hold(keys, insert=True)
        if held is None:
            middle = len(keys) // 2
            self.put(keys[:middle], rows[:middle])
            self.put(keys[middle:], rows[middle:])
            return
        self._host.rows[held.slots] = rows
        self._change(held.unique)

    def first_rows(self, keys: Keys) -> Floats:
        """Return the values that rows of `keys` begin with."""
        values = first_values(keys, width=self.width, seed=self.seed, scale=self.scale)
        if self.owed is not None:
            self.owed.add_to(values, keys, np.zeros(len(keys), dtype=np.float32))
        return values

    def read(self, keys: Keys) -> Floats:
        """Return whole rows, values and state, wherever they lie, moving none; a key without one gives zeros."""
        rows = np.zeros((len(keys), self.row_width), dtype=np.float32)
        places = self.metadata(keys).places
        for tier, here, number_at in (
            (self._host, in_host(places), slot_at),
            (self._disk, on_disk(places), record_at),
            (self.device, on_device(places), device_slot_at),
        ):
            at = np.flatnonzero(here).astype(np.int32)
            if len(at):
                (tier or self._below()).read_into(keys[at], number_at(places[at]), rows, at)
        return rows

    def remove(self, keys: Keys) -> None:
        """Delete rows of distinct keys; keys without a row are left out."""
        places = self.metadata(keys).places
        keys, places = keys[places != NOWHERE], places[places != NOWHERE]
        slots = slot_at(places[in_host(places)])
        homes = self._host.lines[slots, HOME]
        if self._disk is not None:
            self._disk.release(np.concatenate([record_at(places[on_disk(places)]), homes[homes >= 0]]))
        self._host.release(slots)
        numbers = device_slot_at(places[on_device(places)])
        if self.device is not None and len(numbers):
            self.device.release(numbers)
            self.promotion.num_rows -= len(numbers)
        self._index.remove(keys)
        self.eviction.generation += 1

    # -- the rest ------------------------------------------------------------------------------------------------------

    def stats(self, *, num_looked_up: int, num_expired: int) -> TableStats:
        """Return what the store holds and has done; look-ups and expired rows are counted by whoever asks."""
        host_rows, disk_rows, device_rows = self.rows_by_tier
        return TableStats(
            num_rows=self.num_rows,
            host_rows=host_rows,
            disk_rows=disk_rows,
            device_rows=device_rows,
            device_bytes=self.device.used_bytes if self.device else 0,
            memory_bytes=self.eviction.memory_bytes,
            budget_bytes=self.eviction.host_bytes,
            index_bytes=self._index.used_bytes,
            host_row_bytes=self._host.used_bytes,
            disk_bytes=self._disk.used_bytes if self._disk else 0,
            num_looked_up=num_looked_up,
            num_fetched=self.num_fetched,
            num_evicted=self.eviction.num_evicted,
            num_written=self.eviction.num_written,
            num_expired=num_expired,
        )

    @property
    def num_rows(self) -> int:
        """Return how many rows there are, in all tiers."""
        return self._index.num_rows

    @property
    def rows_by_tier(self) -> tuple[int, int, int]:
        """Return how many rows are in the host tier, below and on the device; one with a copy below is in the host."""
        host_rows, device_rows = self._host.num_rows, self.promotion.num_rows
        return host_rows, self.num_rows - host_rows - device_rows, device_rows

    def must_be_open(self) -> None:
        """Refuse work after `close`."""
        if self.closed:
            raise TableError("the table is closed", hint="make a new one, or load its checkpoint")

    def _below(self) -> DiskTier:
        """Return the tier below, which there must be."""
        if self._disk is None:
            raise TableError("the table has no disk tier", hint="give it a folder for its cold rows")
        return self._disk

    def close(self) -> None:
        """Give back memory and files."""
        for tier in (self._host, self._disk, self.device):
            if tier is not None:
                tier.close()
        self.promotion.close()
        self._threads.close()
        if self.key_log is not None:
            self.key_log.close()
