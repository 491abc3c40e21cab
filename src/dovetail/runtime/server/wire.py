"""A server's answers in as many bits as whoever asks wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.codecs import codec_of, pack
from dovetail.codecs.registry import WIDTHS
from dovetail.runtime.dense.copies import Copies
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Forgotten, Pull, Pulled, Refresh, Refreshed
from dovetail.runtime.server.cached_rows import answer_cached
from dovetail.runtime.server.kept_pulls import KeptPulls, PullName
from dovetail.runtime.server.requests import keys_of
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Letter, Sendable, Unwritten

ROW_BLOCK = 32


class AnswerWire:
    """What this server sends, and what each worker then holds of its dense parameters."""

    def __init__(self, exact: NDArray[np.int64]) -> None:
        """Send numbers at the places `exact` of dense parameters as they are."""
        self._copies = Copies(exact)
        self._seed = 0

    def forget(self, worker: str, kept: KeptPulls) -> None:
        """Forget what a worker that is gone pulled and holds; one that is not gone says everything again."""
        kept.forget_worker(worker)
        self._copies.forget(worker)

    def answer(
        self,
        letter: Letter,
        asked: Pull | Refresh,
        shard: Shard,
        parked_s: float,
        *,
        owner: str,
        rows: Sequence[Sendable] | None = None,
    ) -> tuple[Pulled | Refreshed | Forgotten, list[Sendable]]:
        """Return the answer to a worker that waited so long: dense parameters only where the steps it wants are in.

        Its `rows` may be read already, as they were before the step that was waited for.
        """
        if isinstance(asked, Refresh):
            keys = keys_of(asked, letter.arrays, owner, shard.kept)
            if keys is None:
                return Forgotten(), []
            changes = shard.refresh(asked.tables, keys, since=asked.since, dense=asked.dense)
            arrays, base = self.coded(letter.sender, asked, changes, dense=asked.dense)
            return Refreshed(parked_s=parked_s, base=base), arrays
        dense = asked.dense and asked.version <= shard.version
        keep = PullName(owner, asked.number, asked.version) if asked.number >= 0 else None
        found: Sequence[Sendable]
        if asked.cached:
            found = answer_cached(shard, asked, letter.arrays, dense=dense, keep=keep)
        elif asked.first >= 0:
            found = slice_of(asked, shard)
        elif rows is not None:
            found = [*rows, shard.values] if dense else rows
        else:
            found = shard.answer(asked.tables, letter.arrays, dense=dense, keep=keep)
        arrays, base = self.coded(letter.sender, asked, found, dense=dense)
        return Pulled(parked_s=parked_s, version=shard.version, base=base), arrays

    def coded(
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
