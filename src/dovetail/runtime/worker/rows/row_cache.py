"""Rows of servers that a worker keeps, on its device, so that they need not travel again.

In `sync` a row is kept with the step it is as of, and servers say whether a step has changed it since: what comes of it
is what would have come without. In `ssp` a row is kept with how many tasks every worker had done when it was fetched,
and is used as long as a worker's own tasks are at most `staleness` more: what holds for rows that come from servers.

One thread's; another may say `forget`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from dovetail.runtime.blueprint import Blueprint, TableSpec
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Assign
from dovetail.runtime.messages.parameters import MOST_STEPS, NEW_ENOUGH, NOT_KEPT
from dovetail.runtime.worker.rows.keys import Keys
from dovetail.spec.run import RunWorker
from dovetail.splitmix import GOLDEN, mix
from dovetail.units import format_bytes

Floats = NDArray[np.float32]
Places = NDArray[np.int64]
SLOT_BYTES = 4 * 8 + 4 * 4
"""Of a slot beside its row: its line, and its part of the index, at most."""
FREE = -1
LEFT_OUT = -1
"""The slot of a row that found no place."""
KEY, TABLE, STAMP, TURN = range(4)
"""Of a line: whose row it is, as of when, and twice the turn until which it stays, plus one where used lately."""


class CacheMoment(NamedTuple):
    """What rows that come now are as of, and of when kept ones may be."""

    stamp: int
    oldest: int


class CachedSlots(NamedTuple):
    """Of the keys of a look-up: the slots of rows, -1 where there is none, and what a server is told of them."""

    slots: NDArray[np.int32]
    ages: NDArray[np.uint8]


class CacheSlab:
    """Rows of one width: numbers on the device, in slots; which row is where, in host memory."""

    def __init__(self, width: int, size: int, device: torch.device) -> None:
        """Take the memory for `size` rows."""
        self.rows = torch.empty((size, width), dtype=torch.float32, device=device)
        self.heads = np.full(1 << (2 * size - 1).bit_length(), FREE, dtype=np.int32)
        self.lines = np.zeros((size, 4), dtype=np.int64)
        self.counts = np.zeros(2, dtype=np.int64)

    def clear(self) -> None:
        """Keep nothing."""
        self.heads[:] = FREE
        self.counts[:] = 0


class RowCache:
    """What a worker keeps of the servers' rows, within a budget."""

    def __init__(
        self, tables: Sequence[TableSpec], budget_bytes: int, device: torch.device, *, staleness: int | None
    ) -> None:
        """Share the budget among tables by what their rows take; without a `staleness`, every row is exact."""
        self._staleness, self._device = staleness, device
        self._tables = tables
        self._slabs = {width: CacheSlab(width, size, device) for width, size in _sizes(tables, budget_bytes).items()}
        self._turn = 0
        self._is_of: tuple[int, int] | None = None
        """The generation and the count of times that `forget` was said, of what is kept."""
        self._num_forgotten = 0
        self._newest = 0

    @property
    def is_exact(self) -> bool:
        """Whether servers say what still is good, and kept rows are what would have come."""
        return self._staleness is None

    def forget(self) -> None:
        """Have everything dropped before rows are asked for next; any thread may say so."""
        self._num_forgotten += 1

    def begin(self, assign: Assign) -> CacheMoment:
        """Begin to ask for rows of a task; drop what is of another generation, or of clocks that began anew."""
        now = (assign.generation, self._num_forgotten)
        stamp = assign.step if self._staleness is None else assign.slowest
        if now != self._is_of or (not self.is_exact and stamp < self._newest):
            for slab in self._slabs.values():
                slab.clear()
            self._is_of = now
        self._newest = stamp
        self._turn += 1
        if self._staleness is None:
            return CacheMoment(stamp, stamp - MOST_STEPS)
        return CacheMoment(stamp, assign.clock - self._staleness)

    def find(self, table: int, keys: Keys, moment: CacheMoment) -> CachedSlots:
        """Return what is kept of distinct keys of a table."""
        slab = self._slabs.get(self._tables[table].width)
        kept = CachedSlots(np.full(len(keys), LEFT_OUT, dtype=np.int32), np.zeros(len(keys), dtype=np.uint8))
        if slab is not None:
            find_rows(table, keys, slab.heads, slab.lines, moment.oldest, moment.stamp, self.is_exact, *kept)
        return kept

    def whole(
        self, table: int, rows: Floats, came: Places, kept: Places, slots: NDArray[np.int32], moment: CacheMoment
    ) -> Tensor:
        """Return all rows of a look-up on the device: those that `came`, as they are in `rows`, and those in slots.

        Those in slots still are good: exact ones are from now on as of now.
        """
        slab = self._slabs.get(self._tables[table].width)
        values = torch.from_numpy(rows)
        if self._device.type != "cpu":
            values = torch.empty(rows.shape, dtype=torch.float32, device=self._device)
            values.index_copy_(0, self._on_device(came), self._on_device(rows[came]))
        if len(kept) and slab is not None:
            found = slab.rows.index_select(0, self._on_device(slots.astype(np.int64)))
            values.index_copy_(0, self._on_device(kept), found)
            keep_rows(slab.lines, slots, self._turn, moment.stamp, self.is_exact)
        return values

    def put(self, table: int, keys: Keys, values: Tensor, came: Places, moment: CacheMoment) -> None:
        """Keep those rows of a look-up that came."""
        slab = self._slabs.get(self._tables[table].width)
        if slab is None or not len(came):
            return
        slots = np.empty(len(came), dtype=np.int32)
        turn, oldest = self._turn, moment.oldest
        place_rows(table, keys[came], slab.heads, slab.lines, turn, moment.stamp, oldest, slab.counts, slots)
        found = slots != LEFT_OUT
        if not found.all():
            slots, came = slots[found], came[found]
        places = self._on_device(slots.astype(np.int64))
        slab.rows.index_copy_(0, places, values.index_select(0, self._on_device(came)))

    def _on_device(self, numbers: NDArray[Any]) -> Tensor:
        """Return numbers on the device, in its order of things: whoever asks does not wait for what it does now.

        They are read before this returns, since their memory is not page-locked.
        """
        return torch.from_numpy(numbers).to(self._device, non_blocking=self._device.type == "cuda")


def check_caches(blueprint: Blueprint) -> None:
    """Refuse a budget that no row fits, before anything starts."""
    for _, worker in blueprint.run.each_worker():
        if worker.cache_bytes and blueprint.tables and not _sizes(blueprint.tables, worker.cache_bytes):
            row_bytes = max(4 * table.width for table in blueprint.tables) + SLOT_BYTES
            raise TrainingError(
                f"worker.cache_bytes is {worker.cache_bytes}, which has no room for a row",
                hint=f"give {row_bytes} bytes for each row that should stay, or leave it away",
            )


def cache_of(blueprint: Blueprint, settings: RunWorker, device: torch.device) -> RowCache | None:
    """Return the cache that a worker's settings ask for, if they do."""
    training = blueprint.run.training
    if not settings.cache_bytes or not blueprint.tables or training.mode == "async":
        return None
    staleness = training.staleness if training.mode == "ssp" else None
    try:
        return RowCache(blueprint.tables, settings.cache_bytes, device, staleness=staleness)
    except (RuntimeError, MemoryError):  # torch has one error for all that can go wrong, with memory as with all else
        raise TrainingError(
            f"worker.cache_bytes is {settings.cache_bytes}, and {device} has no room for "
            f"{format_bytes(settings.cache_bytes)}",
            hint="lower cache_bytes, or leave it away",
        ) from None


def _sizes(tables: Iterable[TableSpec], budget_bytes: int) -> dict[int, int]:
    """Return how many rows of each width fit the budget, which widths share by the bytes of all their rows."""
    rows: dict[int, int] = {}
    for table in tables:
        rows[table.width] = rows.get(table.width, 0) + table.num_rows
    bytes_of = {width: count * (4 * width + SLOT_BYTES) for width, count in rows.items()}
    part = min(1.0, budget_bytes / max(1, sum(bytes_of.values())))
    return {width: min(int(count * part), (1 << 31) - 1) for width, count in rows.items() if count * part >= 1}


# -- which row is where: an open-addressing index from (table, key) to a slot, and who gives up its slot ---------------
#
# `heads` has a power of two of entries, at least twice as many as slots: a slot, or -1. Removal closes the gap it
# leaves. What is known of a slot lies side by side in `lines`, so that a search touches memory twice.


@njit(cache=True, nogil=True, inline="always")
def home_of(table, key, mask):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where the search for a key of a table begins."""
    return np.int64(mix(np.uint64(key) + GOLDEN * np.uint64(table + 1)) & np.uint64(mask))


@njit(cache=True, nogil=True, inline="always")
def probe(table, key, heads, lines):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return where in `heads` a key of a table is, or where it would be put."""
    mask = len(heads) - 1
    at = home_of(table, key, mask)
    while heads[at] != FREE and (lines[heads[at], KEY] != key or lines[heads[at], TABLE] != table):
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def find_rows(table, asked, heads, lines, oldest, newest, exact, slots, ages):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where the rows of distinct keys are kept, and how old they are, as servers are told.

    Rows of before `oldest` or after `newest` are no use.
    """
    for i in range(len(asked)):
        slot = heads[probe(table, asked[i], heads, lines)]
        slots[i], ages[i] = LEFT_OUT, NOT_KEPT
        if slot != FREE and oldest <= lines[slot, STAMP] <= newest:
            slots[i] = slot
            ages[i] = NOT_KEPT + 1 + newest - lines[slot, STAMP] if exact else NEW_ENOUGH
            lines[slot, TURN] |= 1


@njit(cache=True, nogil=True)
def keep_rows(lines, slots, turn, stamp, exact):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Have rows that are used keep their slots through a turn; exact ones are as of `stamp` from now on."""
    for i in range(len(slots)):
        lines[slots[i], TURN] = 2 * turn + 1
        if exact:
            lines[slots[i], STAMP] = stamp


@njit(cache=True, nogil=True)
def place_rows(table, asked, heads, lines, turn, stamp, oldest, counts, slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the slots of distinct keys, which keep their rows from now on; `counts`: how many are taken, and the hand.

    Where none is free, the hand goes round: whoever is of before `oldest`, or was not used since it last came by, gives
    up its slot. Those of this `turn` keep theirs, and what finds no slot is left out.
    """
    size, rounds = len(lines), 0
    for i in range(len(asked)):
        at = probe(table, asked[i], heads, lines)
        slot = heads[at]
        if slot == FREE:
            if counts[0] < size:
                slot = counts[0]
                counts[0] += 1
            else:
                slot = LEFT_OUT
                while rounds < 2 * size + len(asked):
                    rounds += 1
                    hand = counts[1]
                    counts[1] = (hand + 1) % size
                    is_used = lines[hand, TURN] & 1
                    if lines[hand, TURN] >> 1 != turn and (not is_used or lines[hand, STAMP] < oldest):
                        slot = hand
                        break
                    lines[hand, TURN] -= is_used
                if slot == LEFT_OUT:
                    slots[i] = LEFT_OUT
                    continue
                remove_row(slot, heads, lines)
                at = probe(table, asked[i], heads, lines)
            heads[at] = slot
            lines[slot, KEY], lines[slot, TABLE] = asked[i], table
            lines[slot, TURN] = 0  # not used again yet: a row that is asked for once is the first to go
        lines[slot, STAMP] = stamp
        lines[slot, TURN] = 2 * turn + (lines[slot, TURN] & 1)
        slots[i] = slot


@njit(cache=True, nogil=True)
def remove_row(slot, heads, lines):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take what a slot keeps out of the index, moving later entries of the same run back over the gap."""
    mask = len(heads) - 1
    gap = probe(lines[slot, TABLE], lines[slot, KEY], heads, lines)
    at = gap
    while True:
        at = (at + 1) & mask
        other = heads[at]
        if other == FREE:
            break
        # It may fill the gap unless its home lies behind the gap, up to where it is now.
        if (at - home_of(lines[other, TABLE], lines[other, KEY], mask)) & mask >= (at - gap) & mask:
            heads[gap] = other
            gap = at
    heads[gap] = FREE
