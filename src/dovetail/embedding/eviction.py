"""Eviction: the least used rows go from the host tier down to disk, and the index grows, all within one budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.errors import TableError, storage_error
from dovetail.embedding.index import ENTRY_BYTES, Index
from dovetail.embedding.kernels import moves
from dovetail.embedding.tiers.disk.tier import DiskTier
from dovetail.embedding.tiers.host import SLOT_BYTES, HostTier
from dovetail.embedding.tiers.tier import MOST_AT_ONCE
from dovetail.units import format_bytes


class KeyLog:
    """Appends to a text file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("a", encoding="ascii")
        except OSError as error:
            raise storage_error(path, error, doing="written") from None

    def add(self, step: int, event: str, keys: NDArray[np.int64]) -> None:
        """Write one line a key."""
        try:
            self._file.writelines(f"{step},{event},{key}\n" for key in keys.tolist())
            self._file.flush()
        except OSError as error:
            raise storage_error(self.path, error, doing="written") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


LAST_OPERATION = 2**31 - 8
"""Operations are numbered in int32, and begin again at 1."""
FEWEST_ROWS = 1024
"""A host tier of fewer rows is not written back ahead: a free slot is worth more than the wait."""
AHEAD_SHIFT = 6
"""At least a 64th of the slots is freed at a time: choosing rows looks at every slot, whatever their number."""
SHORT_SHIFT = 7
"""Rows are written back ahead once less than a 128th of the slots is free: half of what one eviction frees."""


@dataclass(slots=True)
class Clock:
    """What time it is in a table: updates so far, look-ups so far, and the search for rows that is under way."""

    step: int = 0
    batch: int = 0
    operation: int = 0

    def next_operation(self) -> int:
        """Begin another search: rows held by an earlier one may go."""
        self.operation = self.operation % LAST_OPERATION + 1
        return self.operation


class Eviction:
    """Decides what goes down, and moves it; `host_bytes` is the budget of index, slots and the disk tier's lists."""

    def __init__(
        self,
        *,
        index: Index,
        host: HostTier,
        disk: DiskTier | None,
        host_bytes: int,
        clock: Clock,
        key_log: KeyLog | None,
    ) -> None:
        self._index, self._host, self._disk, self._clock, self._key_log = index, host, disk, clock, key_log
        self.host_bytes = host_bytes
        self.num_shifts = 0
        """How often rows may have changed their slots."""
        self.last_held = 0
        """The operation whose rows somebody remembers."""
        self.generation = 0
        """Another number once what `last_held` held may be gone or elsewhere."""
        self.num_evicted = 0
        self.num_written = 0

    @property
    def memory_bytes(self) -> int:
        """Return the RAM in use: index, slots, and the lists of the tier below."""
        return self._index.used_bytes + self._host.memory_bytes + (self._disk.memory_bytes if self._disk else 0)

    def make_room(self, wanted: int) -> bool:
        """Free slots until `wanted` rows fit, a few more than needed; False where rows in use leave no room."""
        if wanted <= self._host.num_free:
            return True
        tight = self._disk is not None and self.memory_bytes + self._disk.memory_bytes > self.host_bytes
        if tight and not self._fit(self._index.used_bytes):
            return False
        if wanted > self._host.capacity:
            return False
        return self._evict(wanted - self._host.num_free)

    def make_room_in_index(self, num_new: int) -> bool:
        """Grow the index where it would get too full, the host tier making way; False as in `make_room`."""
        size = self._index.size_for(self._index.num_rows + num_new)
        if size == self._index.size:
            return True
        if not self._fit(self._index.used_bytes + size * ENTRY_BYTES):
            return False
        self._index.grow(size)
        return self._fit(self._index.used_bytes)

    @property
    def capacity(self) -> int:
        """Return how many rows the host tier has slots for, as the budget stands."""
        return self._host.capacity

    @property
    def is_short(self) -> bool:
        """Say whether some of the least used rows should be written down ahead of need."""
        worth_it = self._disk is not None and self.capacity >= FEWEST_ROWS
        return worth_it and self._host.num_free < self.capacity >> SHORT_SHIFT

    def evict_ahead(self, *, done_with: int) -> None:
        """Evict some rows ahead of need; those of the last batch may go where that was operation `done_with`."""
        if self._clock.operation == done_with:
            self._clock.next_operation()
        if self._disk is not None:
            num_rows = min(MOST_AT_ONCE, self.capacity >> AHEAD_SHIFT)
            self._evict(min(num_rows, self._host.num_rows), exactly=False)

    def _fit(self, index_bytes: int) -> bool:
        """Set the host tier's capacity to what the budget leaves beside the index and the lists of the tier below.

        False where rows in use leave no room for that.
        """
        host = self._host
        lists = 2 * self._disk.memory_bytes if self._disk else 0
        capacity = min((self.host_bytes - index_bytes - lists) // (host.row_bytes + SLOT_BYTES), host.reserved)
        if capacity < 1:
            raise TableError(
                f"the index of {self._index.num_rows} rows takes {format_bytes(index_bytes)} while it grows, and "
                f"host_bytes is {format_bytes(self.host_bytes)}",
                hint="raise host_bytes, or let rows expire: a row takes up to 60 bytes of index while that grows",
            )
        if capacity < host.num_rows and not self._evict(host.num_rows - capacity):
            return False
        host.shrink(capacity, self._index.keys, self._index.places)
        self.num_shifts += 1
        self.generation += 1
        return True

    def _evict(self, num_rows: int, *, exactly: bool = True) -> bool:
        """Move at least `num_rows` of the least used rows down; False where fewer may go."""
        host, disk = self._host, self._disk
        if disk is None:
            raise TableError(
                f"{host.num_rows} rows fill host_bytes = {self.host_bytes} and there is no disk tier",
                hint="raise host_bytes or give the table a folder for its cold rows",
            )
        wanted = max(num_rows, host.capacity >> AHEAD_SHIFT) if exactly else num_rows
        slots = host.victims(min(wanted, host.num_rows), self._clock.operation, self._clock.batch)
        if len(slots) < num_rows and exactly:
            return False
        for start in range(0, len(slots), MOST_AT_ONCE):
            self._move_down(disk, slots[start : start + MOST_AT_ONCE])
        self._compact(disk)
        return True

    def _move_down(self, disk: DiskTier, slots: NDArray[np.int32]) -> None:
        """Write rows that differ from their copies below, and free their slots."""
        index, host = self._index, self._host
        keys = np.empty(len(slots), dtype=np.int64)
        num_dirty = moves.dirty_first(host.lines, host.keys, slots, keys)
        records = disk.write_from(keys[:num_dirty], host.rows, slots[:num_dirty])
        moves.move_down(*index.arrays, host.lines, keys, slots, records)
        host.give_back(slots)
        self.generation += self._clock.operation != self.last_held
        self.num_written += num_dirty
        self.num_evicted += len(slots)
        if self._key_log is not None:
            self._key_log.add(self._clock.step, "evicted", keys)

    def _compact(self, disk: DiskTier) -> None:
        """Clear segments until enough of the log lives."""
        index, host = self._index, self._host
        while (run := disk.run_to_clear()) is not None:
            living = np.empty(len(run.keys), dtype=np.int32)
            count = moves.find_living(index.keys, index.places, host.lines, run.keys, run.first, living)
            records = disk.move_out(run, living[:count])
            moves.repoint(index.keys, index.places, host.lines, run.keys[living[:count]], records)
            disk.cleared(run, count)
