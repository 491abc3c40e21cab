"""Batches of distinct keys, as servers have them: found, read and stepped in several threads; found once a step.

Where the rows of a batch lie is a `Whereabouts`: while no row has left its slot since, nobody searches for them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import batch_kernels, distinct_kernels
from dovetail.embedding.crew import Crew
from dovetail.embedding.held import Held
from dovetail.embedding.host_tier import HostTier
from dovetail.embedding.index import Index
from dovetail.embedding.room import Clock, Room
from dovetail.embedding.row_optimizer import Kernel

Keys = NDArray[np.int64]
Slots = NDArray[np.int32]
Floats = NDArray[np.float32]


class Whereabouts(NamedTuple):
    """The slots of a batch's rows, and when that was so."""

    slots: Slots
    as_of: tuple[int, int]


class Distinct:
    """What a store does with distinct keys; whoever calls holds the store's lock."""

    def __init__(
        self,
        index: Index,
        host: HostTier,
        room: Room,
        clock: Clock,
        crew: Crew,
        *,
        hold: Callable[[Keys], Held | None],
        change: Callable[[Slots], None],
    ) -> None:
        """Share the work among a crew; `hold` finds rows that are not all in the host tier.

        `change` says that rows there were changed, and lets their records below die.
        """
        self._index, self._host, self._room, self._clock = index, host, room, clock
        self._crew, self._hold, self._change = crew, hold, change
        self._spared = self._misses = 0
        """How many searches were left to `hold` since rows were missing last, and how many are to be."""

    @property
    def as_of(self) -> tuple[int, int]:
        """Return what changes when a row leaves its slot."""
        return self._room.generation, self._room.num_evicted

    def find(self, keys: Keys) -> Slots | None:
        """Return the slots of keys, with all their rows brought up or made; None where they do not fit at once."""
        if self._spared < self._misses:  # rows were missing lately: the search that brings them up does it at once
            self._spared += 1
        else:
            index, lines, operation = self._index, self._host.lines, self._clock.next_operation()
            slots = np.empty(len(keys), dtype=np.int32)

            def find(first: int, last: int) -> int:
                part = keys[first:last], operation, slots[first:last]
                return int(distinct_kernels.find_and_hold(index.keys, index.places, lines, *part))

            self._spared = 0
            if not sum(self._crew.share(len(keys), find)):
                self._misses = 0
                return slots
            self._misses = min(2 * self._misses + 1, 15)
        held = self._hold(keys)
        return None if held is None else held.slots

    def read(self, slots: Slots, out: Floats) -> None:
        """Copy the values of found rows, and count an access of each."""
        rows, lines, step = self._host.rows, self._host.lines, self._clock.step

        def read(first: int, last: int) -> None:
            distinct_kernels.count_accesses(lines, slots[first:last], step)
            batch_kernels.gather(rows, slots[first:last], out[first:last])

        self._crew.share(len(slots), read)

    def read_again(self, slots: Slots, positions: Slots, out: Floats) -> None:
        """Copy the values at some positions of a batch that was read before."""
        rows = self._host.rows

        def read(first: int, last: int) -> None:
            distinct_kernels.gather_at(rows, slots, positions[first:last], out)

        self._crew.share(len(positions), read)

    def step(self, slots: Slots, gradients: Floats, kernel: Kernel, settings: Floats, *, scale: float) -> None:
        """Step found rows by their gradients times `scale`, multiplied where they are if they can be written."""
        rows, lines, factor, width = self._host.rows, self._host.lines, np.float32(scale), gradients.shape[1]

        def step(first: int, last: int) -> int:
            part = gradients[first:last]
            if not part.flags.writeable:
                part = part * factor
            elif scale != 1.0:
                np.multiply(part, factor, out=part)
            kernel(rows, slots[first:last], part, width, settings)
            return int(distinct_kernels.mark_stepped(lines, slots[first:last]))

        if sum(self._crew.share(len(slots), step)):  # some have records below: one thread counts those that live
            self._change(slots)
