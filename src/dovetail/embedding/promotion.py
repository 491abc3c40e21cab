"""Promotion and demotion: rows on their way between a device tier and the tiers below it; each is in one tier."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.errors import TableError
from dovetail.embedding.eviction import Clock, Eviction
from dovetail.embedding.index import Index
from dovetail.embedding.kernels import moves
from dovetail.embedding.places import record_at
from dovetail.embedding.thread_pool import RowThreads
from dovetail.embedding.tiers.disk.tier import DiskTier
from dovetail.embedding.tiers.host import HostTier
from dovetail.units import format_bytes

MOST_THREADS = 8
CORES_A_THREAD = 2
"""Threads that move rows: half of the cores, but no more than keep up with a GPU."""
KEYS_WORTH_A_THREAD = 1024
MOST_DEMOTED = 131_072
"""Rows that come down before room is looked for again."""
WORTH_COMMITTING = 4096
"""Rows that come down at once for which the memory of the next ones is made ready."""


class Promoted(NamedTuple):
    """Rows that go up: `rows[i]` is that of key `at[i]`, `known[i]` its last step seen, access count and state."""

    at: NDArray[np.int32]
    rows: NDArray[np.float32]
    known: NDArray[np.int32]
    num_from_disk: int


class Promotion:
    """Hands rows up and takes them back; whoever calls holds the table's lock."""

    def __init__(self, index: Index, host: HostTier, disk: DiskTier | None, eviction: Eviction, clock: Clock) -> None:
        self._index, self._host, self._disk, self._eviction, self._clock = index, host, disk, eviction, clock
        self.num_rows = 0
        """Rows that are up."""
        threads = max(1, min(MOST_THREADS, (os.cpu_count() or 1) // CORES_A_THREAD))
        self._threads = RowThreads(threads, fewest=KEYS_WORTH_A_THREAD)
        self._committing = ThreadPoolExecutor(1, thread_name_prefix="dovetail-committing")

    def promote(self, keys: NDArray[np.int64], slots: NDArray[np.int32], rows: NDArray[np.float32]) -> Promoted:
        """Point the index at device slots for distinct keys that are below or have no row.

        Rows that there are go to the first of `rows`; a key without one gets an entry in the index and nothing more.
        """
        self._make_room_in_index(len(keys))
        index, host, disk = self._index, self._host, self._disk
        positions, kinds = np.empty(len(keys), dtype=np.int64), np.empty(len(keys), dtype=np.uint8)
        self._threads.share(
            len(keys),
            lambda first, last: moves.sort_out(index.keys, index.places, keys, positions, kinds, first, last),
        )
        up, below, absent = (
            np.flatnonzero(kinds == kind).astype(np.int32) for kind in (moves.IN_HOST, moves.ON_DISK, moves.ABSENT)
        )
        num_up, num_below = len(up), len(below)
        if disk is not None and num_below:  # first: where a record is damaged, nothing was moved
            below = self._read(disk, keys, positions, below, rows[num_up:])
        at = np.concatenate([up, below])
        known = np.empty((len(at), 3), dtype=np.int32)
        freed, homes = np.empty(num_up, dtype=np.int32), np.empty(num_up, dtype=np.int32)

        def take(first: int, last: int) -> None:
            whole = index.places, host.lines, host.rows, positions, up, slots, rows, known, freed, homes
            moves.take_from_host(*whole, first, last)

        self._threads.share(num_up, take)
        host.give_back(freed)
        if disk is not None:
            disk.release(homes[homes >= 0])
        if disk is not None and num_below:
            disk.release(record_at(index.places[positions[below]]))
            moves.take_from_disk(
                index.places, index.seen, index.counts, index.states, positions, below, slots, known[num_up:]
            )
        moves.add_absent(index.keys, index.places, keys, positions, slots, absent)
        index.num_rows += len(absent)
        self.num_rows += len(keys)
        self._eviction.generation += 1
        return Promoted(at, rows[: len(at)], known, num_below)

    def demote(self, keys: NDArray[np.int64], rows: NDArray[np.float32], known: NDArray[np.int32]) -> None:
        """Take rows back that were up, into the host tier, whose own least used rows go down for them."""
        self._clock.next_operation()
        start, piece = 0, MOST_DEMOTED
        while start < len(keys):
            part = slice(start, min(start + piece, len(keys)))
            num_rows = part.stop - start
            if not self._eviction.make_room(num_rows):
                if num_rows == 1:
                    raise TableError(
                        f"host_bytes = {format_bytes(self._eviction.host_bytes)} has no room for a row from the device",
                        hint="raise host_bytes",
                    )
                piece = num_rows // 2
                continue
            self._put(keys[part], rows[part], known[part])
            start = part.stop
        self.num_rows -= len(keys)
        self._eviction.generation += 1
        if len(keys) >= WORTH_COMMITTING:
            self._committing.submit(self._host.commit_ahead, 2 * len(keys))

    def forget(self, keys: NDArray[np.int64]) -> None:
        """Take keys of rows that are up out of the index."""
        self._index.remove(keys)
        self.num_rows -= len(keys)
        self._eviction.generation += 1

    def close(self) -> None:
        """End the threads."""
        self._threads.close()
        self._committing.shutdown()

    def _put(self, keys: NDArray[np.int64], rows: NDArray[np.float32], known: NDArray[np.int32]) -> None:
        index, host = self._index, self._host
        slots = host.take(len(keys))

        def put(first: int, last: int) -> None:
            whole = index.keys, index.places, host.lines, host.keys, host.rows, keys, slots, rows, known
            moves.put_into_host(*whole, first, last)

        self._threads.share(len(keys), put)

    def _read(
        self,
        disk: DiskTier,
        keys: NDArray[np.int64],
        positions: NDArray[np.int64],
        below: NDArray[np.int32],
        rows: NDArray[np.float32],
    ) -> NDArray[np.int32]:
        """Read the rows of keys `below` from disk to the first of `rows`; return the keys in the order of the rows."""
        records = record_at(self._index.places[positions[below]])
        order = np.argsort(records)  # neighbours on disk are neighbours in the tables of pages
        below = below[order]
        disk.read_into(keys[below], records[order], rows, np.arange(len(below), dtype=np.int32))
        return below

    def _make_room_in_index(self, most_new: int) -> None:
        """Have room in the index for so many more rows."""
        self._clock.next_operation()
        if not self._eviction.make_room_in_index(most_new):
            raise TableError(
                f"host_bytes = {format_bytes(self._eviction.host_bytes)} has no room for the index of "
                f"{self._index.num_rows:,} rows and {most_new:,} more",
                hint="raise host_bytes, or let rows expire",
            )
