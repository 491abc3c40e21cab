"""Rows of a pull as they come in from servers, one server after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Assign
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.runtime.worker.rows.keys import LookUp
from dovetail.runtime.worker.rows.pinned_memory import PinnedMemory
from dovetail.runtime.worker.rows.row_cache import RowCache

Floats = NDArray[np.float32]
Arrays = Sequence[NDArray[Any]]


class Incoming:
    """All rows of all look-ups come."""

    is_cached = False
    """Whether servers are told what is kept here."""

    def __init__(self, look_ups: Sequence[LookUp], widths: Sequence[int], memory: PinnedMemory | None = None) -> None:
        """Take memory for the rows, whose tables have these widths."""
        self._look_ups, memory = look_ups, memory or PinnedMemory()
        self._rows = [memory.floats(len(each.keys), widths[each.table]) for each in look_ups]

    def ages(self, server: int) -> list[NDArray[np.uint8]]:
        """Return what a server is told of the rows that are kept here."""
        return []

    def take_rows(self, server: int, arrays: Arrays, compression: LinkCompression) -> None:
        """Take in a server's answer to a pull."""
        for position, (rows, each) in enumerate(zip(self._rows, self._look_ups, strict=True)):
            part = rows[each.of_server(server)]
            part[:] = compression.rows_down(server, arrays[position], (part.shape[0], part.shape[1]))

    def take_changed(self, server: int, arrays: Arrays, compression: LinkCompression) -> None:
        """Take in a server's answer to a refresh: which rows have changed since the pull, and those."""
        for position, (rows, each) in enumerate(zip(self._rows, self._look_ups, strict=True)):
            places, changed = arrays[2 * position : 2 * position + 2]
            part = rows[each.of_server(server)]
            part[places] = compression.rows_down(server, changed, (len(places), part.shape[1]))

    def whole(self) -> Sequence[Floats | Tensor]:
        """Return the rows of each look-up, once all servers have answered."""
        return self._rows


class CachedIncoming(Incoming):
    """Those that a worker keeps come only where they have changed."""

    def __init__(self, look_ups: Sequence[LookUp], widths: Sequence[int], cache: RowCache, assign: Assign) -> None:
        """Look what is kept, for a task. Rows that come are no more than a stop on the way: any memory will do."""
        super().__init__(look_ups, widths)
        self._cache, self._moment = cache, cache.begin(assign)
        self._kept = [cache.find(each.table, each.keys, self._moment) for each in look_ups]
        self.is_cached = any(kept.ages.any() for kept in self._kept)
        self._came = [np.ones(len(each.keys), dtype=np.bool_) for each in look_ups]
        self.num_rows = sum(len(each.keys) for each in look_ups)
        self.num_kept = self.kept_bytes = 0
        """Rows that did not travel, and their bytes."""

    def ages(self, server: int) -> list[NDArray[np.uint8]]:
        """Return what a server is told of the rows that are kept here."""
        if not self.is_cached:
            return []
        return [kept.ages[each.of_server(server)] for kept, each in zip(self._kept, self._look_ups, strict=True)]

    def take_rows(self, server: int, arrays: Arrays, compression: LinkCompression) -> None:
        """Take in a server's answer: for each look-up a bit a key, and the rows that are sent."""
        if not self.is_cached:
            super().take_rows(server, arrays, compression)
            return
        for position, (rows, each) in enumerate(zip(self._rows, self._look_ups, strict=True)):
            bits, array = arrays[2 * position : 2 * position + 2]
            mine = each.of_server(server)
            sent = np.unpackbits(bits, count=mine.stop - mine.start).astype(np.bool_)
            if (~sent & (self._kept[position].slots[mine] < 0)).any():
                raise TrainingError("a server left out rows that are not kept here", hint="a bug: report it")
            (places,) = np.nonzero(sent)
            part = rows[mine]
            part[places] = compression.rows_down(server, array, (len(places), part.shape[1]))
            self._came[position][mine] = sent

    def take_changed(self, server: int, arrays: Arrays, compression: LinkCompression) -> None:
        """Take in which rows have changed since the pull."""
        super().take_changed(server, arrays, compression)
        for position, each in enumerate(self._look_ups):
            self._came[position][each.of_server(server)][arrays[2 * position]] = True

    def whole(self) -> Sequence[Floats | Tensor]:
        """Return the rows of each look-up, on the worker's device; keep those that came."""
        cache, moment, found = self._cache, self._moment, []
        for each, rows, kept, came in zip(self._look_ups, self._rows, self._kept, self._came, strict=True):
            (stays,) = np.nonzero(~came)
            found.append(cache.whole(each.table, rows, np.nonzero(came)[0], stays, kept.slots[stays], moment))
            self.num_kept += len(stays)
            self.kept_bytes += len(stays) * rows.shape[1] * rows.itemsize
        # After all were read: whoever finds no slot takes that of another row.
        for each, values, came in zip(self._look_ups, found, self._came, strict=True):
            cache.put(each.table, each.keys, values, np.nonzero(came)[0], moment)
        return found
