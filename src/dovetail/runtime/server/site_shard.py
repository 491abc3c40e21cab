"""A server's part of the parameters in a run that is one of several sites: it is exchanged with the other sites."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import Checkpoint
from dovetail.runtime.messages import Commit, LogNote, Message, Waits
from dovetail.runtime.process import Process
from dovetail.runtime.server.gradients import Floats, Keys
from dovetail.runtime.server.shard import AfterSlice, Shard
from dovetail.runtime.sites import checkpoint as saved
from dovetail.runtime.sites.join import Joined, join

LOOK_S, HELD_LOOK_S = 0.01, 0.002
"""How often exchanges are seen to at most: every look takes a tenth of a millisecond."""


class ShardRows:
    """The rows of a table of a shard, as they are after the last step."""

    def __init__(self, shard: Shard, table: int) -> None:
        self._shard, self._table = shard, table

    def read(self, keys: Keys) -> Floats:
        """Return the values of distinct keys."""
        self._shard.settle()
        return self._shard.tables[self._table].lookup_distinct(keys)[0]

    def write(self, keys: Keys, values: Floats) -> None:
        """Give the rows of distinct keys these values."""
        self._shard.settle()
        self._shard.tables[self._table].write(keys, values)


class SiteShard(Shard):
    """A shard whose steps are exchanged with the same shard at other sites."""

    def __init__(self, process: Process, number: int, folder: Path) -> None:
        """Make an empty shard, and join the other sites."""
        super().__init__(process.blueprint, number, folder)
        self.words: list[str] = []
        """What people should hear."""
        self._joined: Joined = join(process, number, self, self.exact, self.words.append)
        self._corrected_at = -1
        self._put_off: Commit | None = None
        self._seen_to_s = -LOOK_S
        """After which step an exchange has changed parameters."""

    # -- as the exchanges see it ---------------------------------------------------------------------------------------

    def rows_of(self, table: int) -> ShardRows:
        """Return the rows of a table."""
        return ShardRows(self, table)

    def corrected(self) -> None:
        """Hear that an exchange has changed parameters."""
        self._corrected_at = self.version

    def news(self, name: str, generation: int) -> list[Message]:
        """Return what the coordinator of a server of this name should hear, words for people once."""
        waits = [Waits(name=name, generation=generation)] if self.is_held or self.is_over_held else []
        words = "; ".join(self.words)
        self.words.clear()
        return [*waits, *([LogNote(name=name, word=words)] if words else [])]

    # -- as a shard ----------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Say whether workers have to wait for an exchange."""
        return self._joined.outer_step.is_held

    @property
    def is_over_held(self) -> bool:
        """Say whether the last step is applied, and the last exchange is not here yet."""
        return self.version >= self._joined.last_step and not self._joined.outer_step.is_finished

    @property
    def look_s(self) -> float:
        """Return how long exchanges may be left alone: hardly, while somebody waits for them."""
        return HELD_LOOK_S if self.is_held or self.is_over_held else LOOK_S

    def puts_off(self, message: Commit) -> bool:
        """Say whether a commit is answered later: that of the last step, once the last exchange is in."""
        self._put_off = message if self.is_over_held else None
        return self._put_off is not None

    def due_commit(self) -> Commit | None:
        """Return a commit that was put off and can be answered now, once."""
        if self._put_off is None or self.is_over_held:
            return None
        message, self._put_off = self._put_off, None
        return message

    def go_on(self) -> bool:
        """See to the exchanges, a few times in a step at most; True where workers that waited need not any more."""
        now_s = time.monotonic()
        if self.version < 0 or now_s - self._seen_to_s < self.look_s:
            return False
        self._seen_to_s = now_s
        return self._joined.outer_step.go_on(now_s)

    def commit(self, *, scale: float, dense_scale: float, factor: float, after_slice: AfterSlice | None = None) -> None:
        """Apply the step, and cut a round where it is time."""
        for table, keys, _ in self.step_sums().rows:
            self._joined.outer_step.touch(table, keys)
        super().commit(scale=scale, dense_scale=dense_scale, factor=factor, after_slice=after_slice)
        self._joined.outer_step.after_step(time.monotonic())

    def changed_since(self, position: int, keys: Keys, since: int) -> NDArray[np.int32]:
        """Return which rows may have changed; after an exchange, any may have."""
        return super().changed_since(position, keys, -1 if since <= self._corrected_at else since)

    def load(self, folder: Path) -> None:
        """Take up the state of a checkpoint, and of the exchanges in it."""
        super().load(folder)
        self._corrected_at, self._put_off = self.version, None
        for table in self.tables:  # compiled now, and not when the first exchange comes
            table.write(np.empty(0, dtype=np.int64), np.empty((0, table.width), dtype=np.float32))
        self._joined.forget()
        saved.load(folder, self._number, self._joined.outer_step, self._joined.shapes, **self._joined.facts())

    def save(self, folder: Path, number: int = -1) -> list[Future[Checkpoint]]:
        """Write what there is, the state of the exchanges too."""
        futures = super().save(folder, number)
        saved.save(folder, self._number, self._joined.outer_step, **self._joined.facts())
        return futures

    def is_kept(self, step: int) -> None:
        """Hear that the checkpoint of a step is whole."""
        self._joined.outer_step.is_kept(step)

    def close(self) -> None:
        """Give back memory and files, and hang up."""
        super().close()
        self._joined.close()


def rest(site: SiteShard | None) -> int:
    """Return for how many milliseconds a server may wait for envelopes, which has sites to see to or not."""
    return 100 if site is None else round(2000 * site.look_s)
