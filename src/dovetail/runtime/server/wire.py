"""A server's answers in as many bits as whoever asks wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.codecs import codec_of, pack
from dovetail.codecs.registry import WIDTHS
from dovetail.runtime.dense.copies import Copies
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Pull, Pulled, Refresh, Refreshed
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Letter

ROW_BLOCK = 32


class AnswerWire:
    """What this server sends, and what each worker then holds of its dense parameters."""

    def __init__(self, exact: NDArray[np.int64]) -> None:
        """Send numbers at the places `exact` of dense parameters as they are."""
        self._copies = Copies(exact)
        self._seed = 0

    def answer(
        self, letter: Letter, asked: Pull | Refresh, shard: Shard, parked_s: float
    ) -> tuple[Pulled | Refreshed, list[NDArray[Any]]]:
        """Return the answer to a worker that waited so long: dense parameters only where the steps it wants are in."""
        if isinstance(asked, Refresh):
            changes = shard.refresh(asked.tables, letter.arrays, since=asked.since, dense=asked.dense)
            arrays, base = self.coded(letter.sender, asked, changes, dense=asked.dense)
            return Refreshed(parked_s=parked_s, base=base), arrays
        dense = asked.dense and asked.version <= shard.version
        found = shard.pull(asked.tables, letter.arrays, dense=dense)
        arrays, base = self.coded(letter.sender, asked, found, dense=dense)
        return Pulled(parked_s=parked_s, version=shard.version, base=base), arrays

    def coded(
        self, reader: bytes, asked: Pull | Refresh, arrays: Sequence[NDArray[Any]], *, dense: bool
    ) -> tuple[list[NDArray[Any]], int]:
        """Return the arrays of an answer as they go, the last of them dense where `dense`, and what that is called."""
        if asked.row_bits == 32 and asked.dense_bits == 32:
            return list(arrays), -1
        if not {asked.row_bits, asked.dense_bits} <= set(WIDTHS):
            raise TrainingError(f"rows are asked for in {asked.row_bits} bits", hint="a bug: report it")
        rows = arrays[:-1] if dense else arrays
        codec = codec_of(asked.row_bits, block=ROW_BLOCK)
        answer = []
        for each in rows:
            self._seed += 1 << 32
            answer.append(pack(each, codec, seed=self._seed) if each.dtype == np.float32 else each)
        if not dense:
            return answer, -1
        last, base = self._copies.answer(reader, arrays[-1], base=asked.base, bits=asked.dense_bits)
        return [*answer, last], base
