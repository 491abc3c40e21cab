"""What is known of a row beside its numbers: where it lies, when and how often it was looked up, if it is saved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import fact_kernels as kernels
from dovetail.embedding.host_tier import HostTier
from dovetail.embedding.index import Index
from dovetail.embedding.places import on_device
from dovetail.embedding.tier import MOST_AT_ONCE

Keys = NDArray[np.int64]


class Facts(NamedTuple):
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

    def of(self, keys: Keys) -> Facts:
        """Return what is known of the rows of keys; a key without a row lies nowhere."""
        facts = Facts(*(np.zeros(len(keys), dtype=np.int32) for _ in range(4)))
        index = self._index
        kernels.read_facts(
            *(index.keys, index.places, index.seen, index.counts, index.states), self._host.lines, keys, *facts
        )
        return facts

    def set(self, keys: Keys, facts: Facts) -> None:
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
