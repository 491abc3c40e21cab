"""Requests that wait for a step; while they do, the rows that they ask for are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dovetail.errors import DovetailError
from dovetail.runtime.messages import Message, Pull
from dovetail.runtime.server.key_set_cache import PullName
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Envelope, Sendable, Unwritten


@dataclass(slots=True, eq=False)
class Waiting:
    """An envelope, since when it waits, and the rows of its answer where they are read already."""

    envelope: Envelope
    since_s: float
    rows: list[Sendable] | None = None


class Parked:
    """The envelopes that wait, in the order in which they came."""

    def __init__(
        self, shard: Shard, answer: Callable[[Envelope, Waiting], None] = lambda _, __: None, *, reads_ahead: bool
    ) -> None:
        """Start with none; without `reads_ahead` rows are read when an envelope is answered.

        Where dense parameters go in slices, who waits gets an `answer` as soon as what it asks for is stepped.
        """
        self._shard, self._answer, self._reads_ahead = shard, answer, reads_ahead
        self._envelopes: list[Waiting] = []
        self._unread: list[Waiting] = []

    def add(self, envelope: Envelope, since_s: float) -> None:
        """Have an envelope wait."""
        waiting = Waiting(envelope, since_s)
        self._envelopes.append(waiting)
        if self._reads_ahead and envelope.lane is not None and is_plain(envelope.message):
            self._unread.append(waiting)

    def take(self) -> list[Waiting]:
        """Return those that wait, who do not from then on."""
        taken, self._envelopes = self._envelopes, []
        self._unread.clear()
        return taken

    def after_slice(self, end: int) -> None:
        """Answer those who wait for rows of the step that is being committed, or for slices up to where it has come."""
        version = self._shard.version
        ready = [each for each in self._envelopes if _is_ready(each.envelope.message, version, end)]
        self._envelopes = [each for each in self._envelopes if each not in ready]
        self._unread = [each for each in self._unread if each not in ready]
        for waiting in ready:
            self._answer(waiting.envelope, waiting)

    @property
    def is_read(self) -> bool:
        """Say whether there is nothing to be read ahead."""
        return not self._unread

    def read_one(self) -> None:
        """Read the rows of one envelope to where its answer goes; the step will change some of them.

        A request that makes no sense is refused when it is answered.
        """
        if not (self._unread and self._shard.is_settled):
            return
        waiting, shard = self._unread.pop(0), self._shard
        envelope, asked = waiting.envelope, waiting.envelope.message
        keep = PullName(envelope.owner, asked.number, asked.version) if asked.number >= 0 else None
        with suppress(DovetailError, ValueError, TypeError, IndexError):
            rows = shard.answer(asked.tables, envelope.arrays, dense=False, keep=keep)
            dense = Unwritten(shard.values.shape, shard.values.dtype, lambda _: None)
            if envelope.lane.place([*rows, dense] if asked.dense else rows) is not None:
                waiting.rows = rows


def is_plain(asked: Message) -> bool:
    """Say whether rows are asked for as they are: all of them, in all their bits."""
    if not isinstance(asked, Pull) or asked.cached or not asked.tables:
        return False
    return asked.row_bits == asked.dense_bits == 32


def _is_ready(asked: Message, version: int, end: int) -> bool:
    """Say whether rows alone are asked for, or a slice that ends before a place, of the state after so many steps."""
    if not isinstance(asked, Pull) or asked.version != version:
        return False
    return asked.last <= end if asked.first >= 0 else not asked.dense
