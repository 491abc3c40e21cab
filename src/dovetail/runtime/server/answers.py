"""A server's answers: in as many bits as wanted, without rows that a worker has; and requests that wait for a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.codecs import codec_of, pack
from dovetail.codecs.registry import WIDTHS
from dovetail.errors import DovetailError
from dovetail.runtime.dense.coding import ReaderCopies
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Forgotten, Message, Pull, Pulled, Refresh, Refreshed
from dovetail.runtime.messages.parameters import MOST_STEPS, NEW_ENOUGH, NOT_KEPT
from dovetail.runtime.server.gradients import Keys
from dovetail.runtime.server.key_set_cache import PullName
from dovetail.runtime.server.requests import keys_of
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Envelope, Sendable, Unwritten

BUG = "a bug: report it"


def answer_cached(
    shard: Shard, pull: Pull, arrays: Sequence[NDArray[Any]], *, dense: bool, keep: PullName | None
) -> list[Sendable]:
    """Return, of each table, one bit a key that says whether its row is sent, and those rows; then dense parameters.

    All rows are looked up: where they lie is remembered for the push, and they count as asked for.
    """
    keys, ages = arrays[: len(pull.tables)], arrays[len(pull.tables) :]
    if len(ages) != len(keys):
        raise TrainingError(f"{len(keys)} arrays of keys come with {len(ages)} of ages", hint=BUG)
    whole = shard.answer(pull.tables, keys, dense=dense, keep=keep)
    found: list[Sendable] = []
    for position, wanted, age, rows in zip(pull.tables, keys, ages, whole, strict=False):
        sent = _to_send(shard, position, wanted, age, pull.version)
        values = rows.written() if isinstance(rows, Unwritten) else rows
        found += [np.packbits(sent), values if sent.all() else values[sent]]
    return [*found, shard.values] if dense else found


def _to_send(shard: Shard, position: int, keys: Keys, ages: NDArray[Any], version: int) -> NDArray[np.bool_]:
    """Say of each key whether its row has to travel."""
    if ages.dtype != np.uint8 or ages.shape != keys.shape:
        raise TrainingError(f"ages of {len(keys)} rows are {ages.dtype} {ages.shape}", hint=BUG)
    sent: NDArray[np.bool_] = ages != NEW_ENOUGH
    for steps in range(MOST_STEPS + 1):
        (kept,) = np.nonzero(ages == NOT_KEPT + 1 + steps)
        if len(kept):
            sent[kept] = False
            sent[kept[shard.changed_since(position, keys[kept], version - steps)]] = True
    return sent


ROW_BLOCK = 32


class AnswerWire:
    """What a shard's server sends, and what each worker then holds of its dense parameters."""

    def __init__(self, shard: Shard) -> None:
        """Answer for a shard; dense numbers at its `exact` places go as they are."""
        self._shard, self._copies = shard, ReaderCopies(shard.exact)
        self._seed = 0

    def forget(self, worker: str) -> None:
        """Forget what a worker that is gone pulled and holds; one that is not gone says everything again."""
        self._shard.kept.forget_worker(worker)
        self._copies.forget(worker)

    def answer(
        self, envelope: Envelope, parked_s: float, *, owner: str, rows: Sequence[Sendable] | None = None
    ) -> tuple[Pulled | Refreshed | Forgotten, list[Sendable]]:
        """Return the answer to a worker that waited so long: dense parameters only where the steps it wants are in.

        Its `rows` may be read already, as they were before the step that was waited for.
        """
        asked: Pull | Refresh = envelope.message
        shard = self._shard
        if isinstance(asked, Refresh):
            keys = keys_of(asked, envelope.arrays, owner, shard.kept)
            if keys is None:
                return Forgotten(), []
            changes = shard.refresh(asked.tables, keys, since=asked.since, dense=asked.dense)
            arrays, base = self._coded(envelope.sender, asked, changes, dense=asked.dense)
            return Refreshed(parked_s=parked_s, base=base), arrays
        dense = asked.dense and asked.version <= shard.version
        keep = PullName(owner, asked.number, asked.version) if asked.number >= 0 else None
        found: Sequence[Sendable]
        if asked.cached:
            found = answer_cached(shard, asked, envelope.arrays, dense=dense, keep=keep)
        elif asked.first >= 0:
            found = slice_of(asked, shard)
        elif rows is not None:
            found = [*rows, shard.values] if dense else rows
        else:
            found = shard.answer(asked.tables, envelope.arrays, dense=dense, keep=keep)
        arrays, base = self._coded(envelope.sender, asked, found, dense=dense)
        return Pulled(parked_s=parked_s, version=shard.version, base=base), arrays

    def _coded(
        self, reader: bytes, asked: Pull | Refresh, sendable: Sequence[Sendable], *, dense: bool
    ) -> tuple[list[Sendable], int]:
        """Return the arrays of an answer as they go, the last of them dense where `dense`, and what that is called."""
        if asked.row_bits == 32 and asked.dense_bits == 32:
            return list(sendable), -1
        if not {asked.row_bits, asked.dense_bits} <= set(WIDTHS):
            raise TrainingError(f"rows are asked for in {asked.row_bits} bits", hint="a bug: report it")
        arrays = [each.written() if isinstance(each, Unwritten) else each for each in sendable]
        rows = arrays[:-1] if dense else arrays
        codec = codec_of(asked.row_bits, block=ROW_BLOCK)
        answer: list[Sendable] = []
        for each in rows:
            self._seed += 1 << 32
            answer.append(pack(each, codec, seed=self._seed) if each.dtype == np.float32 else each)
        if not dense:
            return answer, -1
        last, base = self._copies.answer(reader, arrays[-1], base=asked.base, bits=asked.dense_bits)
        return [*answer, last], base


def slice_of(asked: Pull, shard: Shard) -> list[Sendable]:
    """Return the slice of the dense parameters that is asked for."""
    if not 0 <= asked.first < asked.last <= len(shard.values) or asked.tables:
        raise TrainingError(f"there is no slice {asked.first} to {asked.last} of parameters", hint="a bug: report it")
    return [shard.values[asked.first : asked.last]]


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
