"""Rows in tiers: who lies where, who comes up and who goes down. One thread at a time; `Table` sees to that."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import batch_kernels as kernels
from dovetail.embedding import move_kernels as moves
from dovetail.embedding.disk_tier import LARGEST_SEGMENT_BYTES, MOST_AT_ONCE, SMALLEST_SEGMENT_BYTES, DiskTier
from dovetail.embedding.errors import TableError
from dovetail.embedding.first_values import fill_first_values, first_values
from dovetail.embedding.host_tier import CHANGED, DIRTY, HOME, SEEN, SLOT_BYTES, STATE, TAKEN, HostTier
from dovetail.embedding.index import ENTRY_BYTES, Index
from dovetail.embedding.key_log import KeyLog
from dovetail.embedding.record import Precision, RecordLayout
from dovetail.embedding.row_optimizer import RowOptimizer
from dovetail.units import format_bytes

FIRST_INDEX_SIZE = 64
NO_ROWS = np.empty(0, dtype=np.int32)
NO_RECORDS = np.zeros(1, dtype=np.int64)


class Known(NamedTuple):
    """What is known of rows beside their numbers."""

    places: NDArray[np.int32]
    seen: NDArray[np.int32]
    counts: NDArray[np.int32]
    states: NDArray[np.int32]


class Held(NamedTuple):
    """Where the rows of a batch lie: a slot and a code a key, and the distinct slots; see `move_kernels.resolve`."""

    slots: NDArray[np.int32]
    codes: NDArray[np.int32]
    unique: NDArray[np.int32]


class Found(NamedTuple):
    """What a search for a batch found: rows in the host tier, and keys whose rows are not there."""

    held: Held
    num_unique: int
    num_new: int
    absent: NDArray[np.int32]
    absent_at: NDArray[np.int64]
    below: NDArray[np.int64]


class Store:
    """Index, host tier and disk tier under one budget of `host_bytes`."""

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
    ) -> None:
        """Make an empty store."""
        self.width, self.seed, self.scale, self.host_bytes = width, seed, scale, host_bytes
        self.first_state = np.float32(optimizer.first_state)
        layout = RecordLayout(width=width, state_width=optimizer.state_width(width), precision=cold_precision)
        self.row_width = width + layout.state_width
        self.slot_bytes = self.row_width * 4 + SLOT_BYTES
        self.index = Index(FIRST_INDEX_SIZE)
        reserved = (host_bytes - self.index.used_bytes) // self.slot_bytes
        if reserved < 1:
            raise TableError(
                f"host_bytes = {host_bytes} has no room for a row of {self.slot_bytes} bytes and its index",
                hint=f"give at least {self.index.used_bytes + self.slot_bytes}",
            )
        self.host = HostTier(min(reserved, host_rows or reserved, 2**31 - 2), self.row_width)
        if segment_bytes is None:
            segment_bytes = min(max(host_bytes // 8, SMALLEST_SEGMENT_BYTES), LARGEST_SEGMENT_BYTES)
        self.disk = DiskTier(folder, layout, segment_bytes) if folder is not None else None
        self.key_log = key_log
        self.closed = False
        self.operation = 0
        self._num_shifts = 0
        self._held_stays, self._held_by = False, 0
        self._held_keys, self._held = np.empty(0, dtype=np.int64), Held(*(NO_ROWS,) * 3)
        self.step = 0
        self.batch = 0
        self.num_fetched = 0
        self.num_evicted = 0
        self.num_written = 0

    @property
    def memory_bytes(self) -> int:
        """Return the RAM in use: index, slots, and the lists of the tier below."""
        return self.index.used_bytes + self.host.used_bytes + (self.disk.memory_bytes if self.disk else 0)

    def hold(self, keys: NDArray[np.int64], *, insert: bool) -> Held | None:
        """Return where the rows of a batch lie with all of them brought up, or None where they do not fit at once.

        A key without a row gets one with its first values, or the slot -1 where `insert` is off. No row returned is
        evicted before the next call.
        """
        if self._held_stays and np.array_equal(keys, self._held_keys):
            return self._held  # an update comes after a look-up of the same keys, mostly
        found = self._resolve(keys)
        if found.num_new and insert:
            if not self._create_absent(keys, found):
                return None
            found = self._resolve(keys)
        if len(found.below):
            shifts = self._num_shifts
            if not self._make_room(len(found.below)):
                return None
            if self._num_shifts != shifts:
                found = self._resolve(keys)
            self._fetch(found.below)
        held = self._settle(found)
        if not found.num_new or insert:
            self._held_stays, self._held_by, self._held_keys, self._held = True, self.operation, keys.copy(), held
        return held

    def _resolve(self, keys: NDArray[np.int64]) -> Found:
        """Find the rows of a batch, and hold those in the host tier under this operation."""
        # A new number each time: marks of an earlier search may be out of date.
        self.operation = self.operation % (2**31 - 8) + 1
        index = self.index
        slots, codes, unique, absent = (np.empty(len(keys), dtype=np.int32) for _ in range(4))
        absent_at, below = (np.empty(len(keys), dtype=np.int64) for _ in range(2))
        num_unique, num_absent, num_below, num_new = moves.resolve(
            *(index.keys, index.places, index.states, self.host.lines, keys, self.operation),
            *(slots, codes, unique, absent, absent_at, below),
        )
        return Found(
            Held(slots, codes, unique),
            *(num_unique, num_new, absent[:num_absent], absent_at[:num_absent], below[:num_below]),
        )

    def _settle(self, found: Found) -> Held:
        """Say where the rows lie that were brought up."""
        slots, codes, unique = found.held
        num_unique = moves.settle(
            *(self.index.places, self.host.lines, self.operation, found.absent, found.absent_at),
            *(slots, codes, unique, found.num_unique),
        )
        return Held(slots, codes, unique[:num_unique])

    def _fetch(self, positions: NDArray[np.int64]) -> None:
        """Bring rows up from the tier below, given their positions in the index."""
        disk, index, host = self._below(), self.index, self.host
        records = -index.places[positions] - 1
        order = np.argsort(records)  # neighbours on disk are neighbours in the tables of pages
        records, positions = records[order], positions[order]
        slots = host.take(len(positions))
        try:
            disk.read_into(index.keys[positions], records, host.rows, slots)
        except BaseException:
            host.release(slots)
            raise
        moves.move_up(
            *(index.keys, index.places, index.seen, index.counts, index.states),
            *(host.lines, host.keys, positions, slots),
        )
        self.num_fetched += len(positions)

    def _create_absent(self, keys: NDArray[np.int64], found: Found) -> bool:
        """Make rows for the keys that have none, with their first values; False where they do not fit."""
        new = np.unique(keys[found.absent[found.absent_at < 0]])
        if not self._make_room_in_index(len(new)) or not self._make_room(len(new) + len(found.below)):
            return False
        slots = self.host.take(len(new))
        fill_first_values(self.host.rows, slots, new, self.width, self.seed, self.scale, self.first_state)
        self.index.insert(new, slots + np.int32(1))
        self.host.begin(new, slots)
        self.host.lines[slots, TAKEN] = DIRTY
        self.host.lines[slots, STATE] = CHANGED
        self.host.lines[slots, SEEN] = self.step
        return True

    def _make_room_in_index(self, num_new: int) -> bool:
        """Grow the index where it would get too full, the host tier giving up what it takes; False as in `_fit`."""
        size = self.index.size_for(self.index.num_rows + num_new)
        if size == self.index.size:
            return True
        if not self._fit(self.index.used_bytes + size * ENTRY_BYTES):
            return False
        self.index = self.index.grown(size)
        return self._fit(self.index.used_bytes)

    def _fit(self, index_bytes: int) -> bool:
        """Set the host tier's capacity to what the budget leaves beside the index and the lists of the tier below.

        False where rows in use leave no room for that.
        """
        lists = 2 * self.disk.memory_bytes if self.disk else 0
        capacity = min((self.host_bytes - index_bytes - lists) // self.slot_bytes, self.host.reserved)
        if capacity < 1:
            raise TableError(
                f"the index of {self.index.num_rows} rows takes {format_bytes(index_bytes)} while it grows, and "
                f"host_bytes is {format_bytes(self.host_bytes)}",
                hint="raise host_bytes, or let rows expire: a row takes up to 60 bytes of index while that grows",
            )
        if capacity < self.host.num_rows and not self._evict(self.host.num_rows - capacity):
            return False
        self.host.shrink(capacity, self.index.keys, self.index.places)
        self._num_shifts += 1
        self._held_stays = False
        return True

    def _make_room(self, wanted: int) -> bool:
        """Free slots until `wanted` rows fit, a few more than needed; False where rows in use leave no room."""
        if wanted <= self.host.num_free:
            return True
        tight = self.disk is not None and self.memory_bytes + self.disk.memory_bytes > self.host_bytes
        if tight and not self._fit(self.index.used_bytes):
            return False
        short = wanted - self.host.num_free
        if wanted > self.host.capacity:
            return False
        return self._evict(short)

    def write_back(self, num_rows: int, *, done_with: int) -> None:
        """Evict some rows ahead of need; those of the last batch may go where that was operation `done_with`."""
        if self.operation == done_with:
            self.operation = self.operation % (2**31 - 8) + 1
        if self.disk is not None:
            self._evict(min(num_rows, self.host.num_rows), exactly=False)

    def _evict(self, num_rows: int, *, exactly: bool = True) -> bool:
        """Move at least `num_rows` of the least used rows down; False where fewer may go."""
        if self.disk is None:
            raise TableError(
                f"{self.host.num_rows} rows fill host_bytes = {self.host_bytes} and there is no disk tier",
                hint="raise host_bytes or give the table a folder for its cold rows",
            )
        wanted = max(num_rows, self.host.capacity >> 6) if exactly else num_rows
        slots = self.host.victims(min(wanted, self.host.num_rows), self.operation, self.batch)
        if len(slots) < num_rows and exactly:
            return False
        for start in range(0, len(slots), MOST_AT_ONCE):
            self._move_down(slots[start : start + MOST_AT_ONCE])
        self._compact_below()
        return True

    def _move_down(self, slots: NDArray[np.int32]) -> None:
        """Write rows that differ from their copies below, and free their slots."""
        disk, index, host = self._below(), self.index, self.host
        keys = np.empty(len(slots), dtype=np.int64)
        num_dirty = moves.dirty_first(host.lines, host.keys, slots, keys)
        records = disk.write_from(keys[:num_dirty], host.rows, slots[:num_dirty])
        moves.move_down(
            *(index.keys, index.places, index.seen, index.counts, index.states, host.lines, keys, slots, records)
        )
        host.give_back(slots)
        self._held_stays &= self.operation == self._held_by
        self.num_written += num_dirty
        self.num_evicted += len(slots)
        if self.key_log is not None:
            self.key_log.add(self.step, "evicted", keys)

    def _compact_below(self) -> None:
        """Clear segments until enough of the log lives."""
        disk, index, host = self._below(), self.index, self.host
        while (part := disk.part_to_clear()) is not None:
            living = np.empty(len(part.keys), dtype=np.int32)
            count = moves.find_living(index.keys, index.places, host.lines, part.keys, part.first, living)
            records = disk.move_out(part, living[:count])
            moves.repoint(index.keys, index.places, host.lines, part.keys[living[:count]], records)
            disk.cleared(part, count)

    def change(self, slots: NDArray[np.int32]) -> None:
        """Say that rows in the host tier were changed: their records below are dead."""
        living = self.disk.segments.num_living if self.disk else NO_RECORDS
        kernels.mark_changed(self.host.lines, slots, living, self.disk.segment_records if self.disk else 1)

    def known(self, keys: NDArray[np.int64]) -> Known:
        """Return what is known of rows."""
        known = Known(*(np.zeros(len(keys), dtype=np.int32) for _ in range(4)))
        index = self.index
        kernels.describe(
            *(index.keys, index.places, index.seen, index.counts, index.states), self.host.lines, keys, *known
        )
        return known

    def set_known(self, keys: NDArray[np.int64], known: Known) -> None:
        """Set what is known of rows that there are, places aside."""
        index = self.index
        kernels.set_known(
            *(index.keys, index.places, index.seen, index.counts, index.states), self.host.lines, keys, *known[1:]
        )

    def peek(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return whole rows, values and state, from wherever they lie, moving none; a key without one gives zeros."""
        rows = np.zeros((len(keys), self.row_width), dtype=np.float32)
        places = self.known(keys).places
        up, down = places > 0, places < 0
        rows[up] = self.host.rows[places[up] - 1]
        if down.any():
            rows[down] = self._below().read(keys[down], -places[down] - 1)
        return rows

    def put(self, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Set whole rows of distinct keys, making those that do not exist."""
        held = self.hold(keys, insert=True)
        if held is None:
            middle = len(keys) // 2
            self.put(keys[:middle], rows[:middle])
            self.put(keys[middle:], rows[middle:])
            return
        self.host.rows[held.slots] = rows
        self.change(held.unique)

    def remove(self, keys: NDArray[np.int64]) -> None:
        """Delete rows of distinct keys; keys without a row are left out."""
        places = self.known(keys).places
        there = places != 0
        keys, places = keys[there], places[there]
        slots = places[places > 0] - 1
        homes = self.host.lines[slots, HOME]
        if self.disk is not None:
            self.disk.release(np.concatenate([-places[places < 0] - 1, homes[homes >= 0]]).astype(np.int32))
        self.host.release(slots.astype(np.int32))
        self.index.remove(keys)
        self._held_stays = False

    def find_expired(self, before: int, below: int) -> NDArray[np.int64]:
        """Return the keys of rows last seen before the step `before` or counted less than `below`."""
        index = self.index
        found: list[NDArray[np.int64]] = []
        start = 0
        while start < index.size:
            keys = np.empty(MOST_AT_ONCE, dtype=np.int64)
            count, start = kernels.find_expired(
                *(index.keys, index.places, index.seen, index.counts, self.host.lines, before, below, start, keys)
            )
            found.append(keys[:count].copy())
        return np.concatenate(found)

    def keys(self) -> NDArray[np.int64]:
        """Return every key that has a row."""
        keys = np.empty(self.index.num_rows, dtype=np.int64)
        kernels.all_keys(self.index.keys, self.index.places, keys)
        return keys

    def first_rows(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values that rows of `keys` begin with."""
        return first_values(keys, width=self.width, seed=self.seed, scale=self.scale)

    def must_be_open(self) -> None:
        """Refuse work after `close`."""
        if self.closed:
            raise TableError("the table is closed", hint="make a new one, or load its checkpoint")

    def _below(self) -> DiskTier:
        """Return the tier below, which there must be."""
        if self.disk is None:
            raise TableError("the table has no disk tier", hint="give it a folder for its cold rows")
        return self.disk

    def close(self) -> None:
        """Give back memory and files."""
        self.host.close()
        if self.disk is not None:
            self.disk.close()
