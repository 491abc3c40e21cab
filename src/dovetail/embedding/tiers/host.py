"""The host tier: rows in RAM, at slots of one reserved range that the system commits page by page.

Beside its row a slot has a line of what is known of it (`row_metadata`) and its key.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.index import probe
from dovetail.embedding.places import at_slot
from dovetail.embedding.row_metadata import CLEAN, COUNT, FREE, HELD, HOME, LINE_BYTES, MOST_COUNTED, NEEDED, TAKEN
from dovetail.embedding.tiers.tier import SlottedTier

SLOT_BYTES = LINE_BYTES + 8 + 4
"""A slot's line, its key, its place on the stack of free slots."""
FEWEST_LOOKED_AT, PART_OF_VICTIMS = 2**18, 8
"""Slots that are looked at for victims: so many, or so many times the victims wanted; all of them would take long."""
WORTH_LARGE_PAGES = 64 << 20
"""A range of so many bytes asks for large pages: a row is then found without a walk through tables of pages."""
_COMMIT = 23
"""MADV_POPULATE_WRITE, which `mmap` has no name for; where the system has none, pages are committed as written."""
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class HostTier(SlottedTier):
    """Up to `capacity` rows in RAM; the capacity can fall and rise within what was reserved."""

    def __init__(self, reserved: int, row_width: int) -> None:
        """Reserve address space for `reserved` rows of `row_width` float32 numbers."""
        self.reserved = reserved
        self.row_bytes = row_width * 4
        self._sizes = (self.row_bytes, LINE_BYTES, 8, 4)
        self._ranges = [_reserve(reserved * size_bytes) for size_bytes in self._sizes]
        self.rows = np.frombuffer(self._ranges[0], np.float32)[: reserved * row_width].reshape(reserved, row_width)
        self.lines = np.frombuffer(self._ranges[1], np.int32)[: reserved * 8].reshape(reserved, 8)
        self.keys = np.frombuffer(self._ranges[2], np.int64)[:reserved]
        super().__init__(reserved, np.frombuffer(self._ranges[3], np.int32)[:reserved])
        self.hand = 0
        self._committed = 0
        self._committing = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Return the bytes of all slots up to the highest one in use."""
        return self.top * (self.row_bytes + SLOT_BYTES)

    @property
    def memory_bytes(self) -> int:
        """Return the same: all of it is RAM."""
        return self.used_bytes

    def commit_ahead(self, num_rows: int) -> None:
        """Have the system commit the memory of the next slots above all that were used; what is there stays as it is.

        For a thread of its own: committing takes as long as the copying of rows.
        """
        with self._committing:
            start, end = max(self.top, self._committed), min(self.capacity, self.top + num_rows)
            if start < end:
                for memory, size_bytes in zip(self._ranges, self._sizes, strict=True):
                    _commit(memory, start * size_bytes, end * size_bytes)
                self._committed = end

    def write_from(
        self, keys: NDArray[np.int64], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Keep rows, and return the slot of each."""
        slots = self.take(len(keys))
        self.rows[slots] = rows[at]
        self.begin(keys, slots)
        return slots

    def begin(self, keys: NDArray[np.int64], slots: NDArray[np.int32]) -> None:
        """Say whose rows lie at slots, and nothing more of them."""
        self.lines[slots] = 0
        self.lines[slots, HOME] = -1
        self.lines[slots, TAKEN] = CLEAN
        self.keys[slots] = keys

    def read_into(
        self, keys: NDArray[np.int64], numbers: NDArray[np.int32], rows: NDArray[np.float32], at: NDArray[np.int32]
    ) -> None:
        """Copy the rows at slots to `rows`."""
        rows[at] = self.rows[numbers]

    def release(self, numbers: NDArray[np.int32]) -> None:
        """Free slots."""
        self.lines[numbers, TAKEN] = FREE
        self.give_back(numbers)

    def victims(self, wanted: int, operation: int, batch: int) -> NDArray[np.int32]:
        """Return up to `wanted` slots to evict: the least counted that nobody holds and no known batch needs.

        They come from a part of all slots, one part after the other.
        Where these do not suffice, rows of known batches go too, never those held by `operation`.
        """
        chosen = np.empty(wanted, dtype=np.int32)
        part = min(self.top, max(FEWEST_LOOKED_AT, PART_OF_VICTIMS * wanted))
        for known_batch, looked_at in ((batch, part), (batch, self.top), (np.iinfo(np.int32).max, self.top)):
            count = choose_victims(self.lines, self.top, operation, known_batch, self.hand, looked_at, chosen)
            if count == wanted:
                break
        if count:
            self.hand = int(chosen[count - 1]) + 1
        return chosen[:count]

    def shrink(self, capacity: int, index_keys: NDArray[np.int64], index_places: NDArray[np.int32]) -> None:
        """Keep all rows below slot `capacity`, which they must fit, and hand the memory above back."""
        if self.top > capacity:
            self.top, self._num_free = compact(
                self.rows, self.lines, self.keys, self._free, self.top, capacity, index_keys, index_places
            )
            self._committed = max(self._committed, capacity + 1)
        with self._committing:
            if self._committed > capacity:
                for memory, size_bytes in zip(self._ranges, self._sizes, strict=True):
                    _hand_back(memory, capacity * size_bytes)
                self._committed = capacity
            self.capacity = capacity

    def close(self) -> None:
        """Let go of the memory."""
        self.rows = np.empty((0, self.row_bytes // 4), dtype=np.float32)
        self.capacity = self.top = self._num_free = 0


def _reserve(size_bytes: int) -> mmap.mmap:
    """Return a range of zeros that takes memory as it is written."""
    memory = mmap.mmap(-1, max(size_bytes, mmap.PAGESIZE))
    if size_bytes >= WORTH_LARGE_PAGES:
        with contextlib.suppress(OSError, AttributeError):  # a system without them for shared memory works as well
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _commit(memory: mmap.mmap, start: int, end: int) -> bool:
    """Have pages with these bytes committed, without Python's lock; False where the system does not do so."""
    start = start // mmap.PAGESIZE * mmap.PAGESIZE
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return bool(_libc.madvise(address + start, end - start, _COMMIT) == 0)


def _hand_back(memory: mmap.mmap, used_bytes: int) -> None:
    """Let the system have the pages behind `used_bytes`; they read as zeros again."""
    start = -(-used_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if start < len(memory):
        memory.madvise(mmap.MADV_REMOVE, start, len(memory) - start)  # shared memory outlives MADV_DONTNEED


@njit(cache=True, nogil=True, inline="always")
def _may_go(lines, slot, operation, batch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Say whether a slot may be evicted, without a branch that nobody could guess."""
    return (lines[slot, TAKEN] != FREE) & (lines[slot, HELD] != operation) & (lines[slot, NEEDED] <= batch)


@njit(cache=True, nogil=True)
def choose_victims(lines, top, operation, batch, hand, looked_at, chosen):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `chosen` with the least counted slots that may go, of so many from a clock's hand on, in that order."""
    wanted = len(chosen)
    histogram = np.zeros(MOST_COUNTED + 1, dtype=np.int64)
    begin = hand if hand < top else 0
    slot = begin
    for _ in range(looked_at):
        histogram[lines[slot, COUNT]] += _may_go(lines, slot, operation, batch)
        slot += 1
        if slot == top:
            slot = 0
    limit, below = 0, 0
    while limit < MOST_COUNTED and below + histogram[limit] < wanted:
        below += histogram[limit]
        limit += 1
    equals = wanted - below
    found = 0
    slot = begin
    for _ in range(looked_at):
        if found == wanted:
            break
        count = lines[slot, COUNT]
        goes = _may_go(lines, slot, operation, batch) & ((count < limit) | ((count == limit) & (equals > 0)))
        equals -= goes & (count == limit)
        chosen[found] = slot
        found += goes
        slot += 1
        if slot == top:
            slot = 0
    return found


@njit(cache=True, nogil=True)
def compact(rows, lines, keys, free, top, capacity, index_keys, index_places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Move rows from slots at or above `capacity` to free ones below; return the new top and the free ones."""
    gap = 0
    for slot in range(capacity, top):
        if lines[slot, TAKEN] == FREE:
            continue
        while lines[gap, TAKEN] != FREE:
            gap += 1
        rows[gap] = rows[slot]
        lines[gap] = lines[slot]
        keys[gap] = keys[slot]
        lines[slot, TAKEN] = FREE
        index_places[probe(index_keys, index_places, keys[gap])] = at_slot(gap)
    num_free = 0
    for slot in range(capacity - 1, -1, -1):
        if lines[slot, TAKEN] == FREE:
            free[num_free] = slot
            num_free += 1
    return capacity, num_free
