"""Rows in tiers: who lies where, who comes up and who goes down. One thread at a time; `Table` sees to that."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import batch_kernels as kernels
from dovetail.embedding.disk_tier import LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES, DiskTier
from dovetail.embedding.errors import TableError
from dovetail.embedding.first_values import fill_first_values, first_values
from dovetail.embedding.host_tier import CHANGED, DIRTY, HOME, SEEN, SLOT_BYTES, STATE, TAKEN, HostTier
from dovetail.embedding.index import ENTRY_BYTES, Index
from dovetail.embedding.key_log import KeyLog
from dovetail.embedding.record import Precision, RecordLayout
from dovetail.embedding.row_optimizer import RowOptimizer
from dovetail.units import format_bytes

FIRST_INDEX_SIZE = 64
MOST_AT_ONCE = 4096
"""Rows moved between tiers in one go: what bounds the buffers."""
NO_ROWS = np.empty(0, dtype=np.int32)


class Known(NamedTuple):
    """What is known of rows beside their numbers."""

    places: NDArray[np.int32]
    seen: NDArray[np.int32]
    counts: NDArray[np.int32]
    states: NDArray[np.int32]


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
        self.operation = 0
        self._moves = 0
        self._held_moves, self._held_keys, self._held_slots = 0, np.empty(0, dtype=np.int64), NO_ROWS
        self.step = 0
        self.batch = 0
        self.num_fetched = 0
        self.num_evicted = 0
        self.num_written = 0

    @property
    def memory_bytes(self) -> int:
        """Return the RAM in use: index, slots, and the lists of the tier below."""
        return self.index.used_bytes + self.host.used_bytes + (self.disk.memory_bytes if self.disk else 0)

    def hold(self, keys: NDArray[np.int64], *, insert: bool) -> NDArray[np.int32] | None:
        """Return the slot of each key with its row brought up, or None where they do not all fit at once.

        A key without a row gets one with its first values, or the slot -1 where `insert` is off. No row returned is
        evicted before the next call.
        """
        self.operation = self.operation % (2**31 - 8) + 2
        if self._moves == self._held_moves and np.array_equal(keys, self._held_keys):
            return self._held_slots  # an update comes after a look-up of the same keys, mostly
        slots = np.empty(len(keys), dtype=np.int32)
        if kernels.find_slots(self.index.keys, self.index.places, keys, slots):
            kernels.hold_slots(self.host.lines, slots, self.operation)
            if not self.bring(np.unique(keys[slots < 0]), insert=insert):
                return None
            missing = kernels.find_slots(self.index.keys, self.index.places, keys, slots)
            if missing:
                return slots
        self._held_moves, self._held_keys, self._held_slots = self._moves, keys.copy(), slots
        return slots

    def bring(self, keys: NDArray[np.int64], *, insert: bool) -> bool:
        """Bring rows that are not in the host tier into it, making those that do not exist where `insert` says so."""
        positions = self.index.find(keys)
        below, new = keys[positions >= 0], keys[positions < 0]
        if not insert:
            new = new[:0]
        if len(new) and not self._make_room_in_index(len(new)):
            return False
        if not self._make_room(len(below) + len(new)):
            return False
        for start in range(0, len(below), MOST_AT_ONCE):
            self._fetch(below[start : start + MOST_AT_ONCE])
        if len(new):
            self._create(new)
        return True

    def _fetch(self, keys: NDArray[np.int64]) -> None:
        """Bring rows up from the tier below."""
        disk = self._below()
        records = -self.index.places[self.index.find(keys)] - 1
        slots = self.host.write(keys, disk.read(keys, records))
        index = self.index
        kernels.move_up(
            *(index.keys, index.places, index.seen, index.counts, index.states), self.host.lines, keys, slots
        )
        self.num_fetched += len(keys)

    def _create(self, keys: NDArray[np.int64]) -> None:
        """Make rows with their first values."""
        slots = self.host.take(keys)
        fill_first_values(self.host.rows, slots, keys, self.width, self.seed, self.scale, self.first_state)
        self.index.insert(keys, slots + np.int32(1))
        self.host.lines[slots, TAKEN] = DIRTY
        self.host.lines[slots, STATE] = CHANGED
        self.host.lines[slots, SEEN] = self.step

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
        lists = self.disk.memory_bytes + 2 * self.disk.segment_records if self.disk else 0
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
        self._moves += 1
        return True

    def _make_room(self, wanted: int) -> bool:
        """Free slots until `wanted` rows fit, a few more than needed; False where rows in use leave no room."""
        if wanted <= self.host.num_free:
            return True
        tight = self.disk is not None and self.memory_bytes + self.disk.segment_records > self.host_bytes
        if tight and not self._fit(self.index.used_bytes):
            return False
        short = wanted - self.host.num_free
        if wanted > self.host.capacity:
            return False
        return self._evict(short)

    def write_back(self, num_rows: int) -> None:
        """Evict some rows ahead of need."""
        self.operation = self.operation % (2**31 - 8) + 2
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
        keys = host.keys[slots]
        homes = host.lines[slots, HOME].copy()
        dirty = host.lines[slots, TAKEN] == DIRTY
        if dirty.any():
            stale = homes[dirty]
            homes[dirty] = disk.write(keys[dirty], host.rows[slots[dirty]])
            disk.release(stale[stale >= 0])
            self.num_written += int(dirty.sum())
        kernels.move_down(
            *(index.keys, index.places, index.seen, index.counts, index.states), host.lines, keys, slots, homes
        )
        host.release(slots)
        self._moves += 1
        self.num_evicted += len(slots)
        if self.key_log is not None:
            self.key_log.add(self.step, "evicted", keys)

    def _compact_below(self) -> None:
        """Empty segments that are mostly dead, a few at a time."""
        disk = self._below()
        for _ in range(4):
            number = disk.most_dead()
            if number is None:
                return
            while number in disk.segments:
                keys, old, new = disk.move_out(number)
                kernels.repoint(self.index.keys, self.index.places, self.host.lines, keys, new)
                disk.retire(number, old)

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
        slots = self.hold(keys, insert=True)
        if slots is None:
            middle = len(keys) // 2
            self.put(keys[:middle], rows[:middle])
            self.put(keys[middle:], rows[middle:])
            return
        self.host.rows[slots] = rows
        kernels.mark_changed(self.host.lines, slots)

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
        self._moves += 1

    def keys(self) -> NDArray[np.int64]:
        """Return every key that has a row."""
        keys = np.empty(self.index.num_rows, dtype=np.int64)
        kernels.all_keys(self.index.keys, self.index.places, keys)
        return keys

    def first_rows(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values that rows of `keys` begin with."""
        return first_values(keys, width=self.width, seed=self.seed, scale=self.scale)

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
