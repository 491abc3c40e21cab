"""Rows for a worker that keeps some: only those are sent that it has not, or that steps have changed since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Pull
from dovetail.runtime.messages.row_ages import MOST_STEPS, NEW_ENOUGH, NOT_KEPT
from dovetail.runtime.server.attempts import Keys
from dovetail.runtime.server.kept_pulls import PullName
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Sendable, Unwritten

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
