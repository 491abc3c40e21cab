"""Looking rows up: their values, one by one or pooled, and the count of who is hot."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.kernels import batches
from dovetail.embedding.store import Held, TieredStore, Whereabouts

AGEING_LOOKUPS_A_SLOT = 64
"""Counts are halved after so many look-ups per slot: late enough to tell warm rows from cold ones, soon enough that
yesterday's hot rows go."""


class Lookup:
    """Reads rows of a store, and keeps their access counts; whoever calls holds the table's lock, but for `note`."""

    def __init__(self, store: TieredStore, lock: threading.RLock, ageing_lookups: int | None) -> None:
        """Halve counts after `ageing_lookups` rows; absent, that goes by the slots there are."""
        self._store, self._lock, self._ageing_lookups = store, lock, ageing_lookups
        self._num_since_ageing = 0
        self.num_rows = 0
        """Rows looked up since the table was made."""

    def values(self, keys: NDArray[np.int64], out: NDArray[np.float32], *, insert: bool) -> None:
        """Write the values of keys as one batch."""
        self._values(keys, out, insert=insert)
        self._end_batch()

    def distinct(
        self, keys: NDArray[np.int64], out: NDArray[np.float32], where: Whereabouts | None = None
    ) -> Whereabouts | None:
        """Write the values of distinct keys as one batch; return where they lie, unless they do not fit at once.

        `where` they lay a while ago may still hold.
        """
        holds = where is not None and where.as_of == self._store.as_of
        slots = where.slots if where is not None and holds else self._store.find_distinct(keys)
        if slots is None:
            self._values(keys, out, insert=True)
        else:
            self._store.read_distinct(slots, out)
            self._num_since_ageing += len(slots)
            self.num_rows += len(slots)
        self._end_batch()
        return None if slots is None else Whereabouts(slots, self._store.as_of)

    def again(self, where: Whereabouts, positions: NDArray[np.int32], out: NDArray[np.float32]) -> bool:
        """Write the values at some positions of a batch again; False where rows have moved since it was looked up."""
        holds = where.as_of == self._store.as_of
        if holds:
            self._store.read_again(where.slots, positions, out)
        return holds

    def pooled(
        self,
        keys: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        out: NDArray[np.float32],
        *,
        mean: bool,
        insert: bool,
    ) -> None:
        """Write the sum, or the mean, of each bag keys[begins[b]:ends[b]] as one batch."""
        held = self._store.hold(keys, insert=insert)
        if held is not None and (insert or not len(keys) or held.slots.min() >= 0):
            self._count(held)
            self._store.pool(held, begins, ends, mean, out)
        else:
            values = np.empty((len(keys), out.shape[1]), dtype=np.float32)
            self._values(keys, values, insert=insert)
            batches.pool(values, np.arange(len(keys), dtype=np.int32), begins, ends, mean, out)
        self._end_batch()

    def note(self, num_rows: int) -> None:
        """Count a batch of so many distinct rows, looked up on a device."""
        self._num_since_ageing += num_rows
        self.num_rows += num_rows
        self._end_batch()

    def _values(self, keys: NDArray[np.int64], out: NDArray[np.float32], *, insert: bool) -> None:
        """Write the values of keys; where they do not fit at once, each distinct key in turn."""
        held = self._store.hold(keys, insert=insert)
        if held is not None:
            self._count(held)
            self._store.gather(held, out)
            if not insert and (absent := held.slots < 0).any():
                out[absent] = self._store.first_rows(keys[absent])
            return
        unique, inverse = np.unique(keys, return_inverse=True)
        values = np.empty((len(unique), out.shape[1]), dtype=np.float32)
        middle = len(unique) // 2
        for half in (slice(0, middle), slice(middle, None)):
            self._values(unique[half], values[half], insert=insert)
        out[:] = values[inverse]

    def _count(self, held: Held) -> None:
        """Count one access for every row looked up."""
        self._store.count(held)
        self._num_since_ageing += len(held.unique)
        self.num_rows += len(held.unique)

    def _end_batch(self) -> None:
        """Go on to the next batch, and age the counts where it is time."""
        self._store.clock.batch += 1
        period = self._ageing_lookups or AGEING_LOOKUPS_A_SLOT * self._store.eviction.capacity
        if self._num_since_ageing >= period:
            self._num_since_ageing -= period
            with self._lock:
                self._store.age_counts()
