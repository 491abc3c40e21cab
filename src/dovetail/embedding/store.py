"""Rows in tiers under one index: those of a batch are found, made and brought up. One thread at a time; see `Table`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import batch_kernels, fact_kernels
from dovetail.embedding import move_kernels as moves
from dovetail.embedding.anywhere import Anywhere
from dovetail.embedding.crew import Crew
from dovetail.embedding.disk_tier import LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES, DiskTier
from dovetail.embedding.distinct import Distinct
from dovetail.embedding.errors import TableError
from dovetail.embedding.first_values import fill_first_values, first_values
from dovetail.embedding.held import Found, Held
from dovetail.embedding.host_tier import SLOT_BYTES, HostTier
from dovetail.embedding.index import Index, size_for
from dovetail.embedding.key_log import KeyLog
from dovetail.embedding.lifting import Lifting
from dovetail.embedding.places import MOST_SLOTS, at_slot, record_at
from dovetail.embedding.record import Precision, RecordLayout
from dovetail.embedding.room import Clock, Room
from dovetail.embedding.row_facts import RowFacts
from dovetail.embedding.row_optimizer import Kernel, RowOptimizer
from dovetail.embedding.slot_line import CHANGED, DIRTY, SEEN, STATE, TAKEN
from dovetail.embedding.stats import TableStats
from dovetail.embedding.tier import Tier

FIRST_INDEX_SIZE = 64
NO_ROWS = np.empty(0, dtype=np.int32)
NO_RECORDS = np.zeros(1, dtype=np.int64)


class Store:
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
        self.room = Room(
            index=self._index,
            host=self._host,
            disk=self._disk,
            host_bytes=host_bytes,
            clock=self.clock,
            key_log=key_log,
        )
        self._crew = Crew(threads)
        self.distinct = Distinct(
            *(self._index, self._host, self.room, self.clock, self._crew),
            hold=lambda keys: self.hold(keys, insert=True),
            change=self._change,
        )
        self.lifting = Lifting(self._index, self._host, self._disk, self.room, self.clock)
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

    def _resolve(self, keys: NDArray[np.int64]) -> Found:
        """Find the rows of a batch, and hold those in the host tier under this operation."""
        operation = self.clock.next_operation()  # a new number each time: marks of an earlier search may be out of date
        index = self._index
        slots, codes, unique, absent = (np.empty(len(keys), dtype=np.int32) for _ in range(4))
        absent_at, below = (np.empty(len(keys), dtype=np.int64) for _ in range(2))
        num_unique, num_absent, num_below, num_new = moves.resolve(
            *(index.keys, index.places, index.states, self._host.lines, keys, operation),
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

    def _create_absent(self, keys: NDArray[np.int64], found: Found) -> bool:
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
