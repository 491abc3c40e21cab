"""Loading checkpoints into a store: of one table or of all shards of one, into any shard of any number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

import numpy as np

from dovetail.embedding.checkpoints.format import Checkpoint, TableSettings
from dovetail.embedding.errors import TableError
from dovetail.embedding.hashing import shard_of
from dovetail.embedding.row_metadata import SAVED
from dovetail.embedding.row_optimizer import Adam, AdamPerRow, PrivateSGD, RowOptimizer, described
from dovetail.embedding.store import TieredStore
from dovetail.embedding.tiers.disk.record import Precision
from dovetail.embedding.tiers.tier import MOST_AT_ONCE
from dovetail.privacy.owed import OwedNoise


class LoadOptions(TypedDict, total=False):
    """What a table that is loaded may be given; the rest is in its checkpoint."""

    optimizer: RowOptimizer
    """Of the kind that the table was saved with; its rates may be others."""
    host_bytes: int
    host_rows: int | None
    folder: str | Path | None
    cold_precision: Precision
    shard: int
    num_shards: int
    ageing_lookups: int | None
    key_log: str | Path | None
    segment_bytes: int | None
    device: str
    device_bytes: int | None
    device_rows: int | None
    expected_rows: int | None
    threads: int
    owed: OwedNoise | None


def find_chains(path: str | Path | Sequence[str | Path]) -> tuple[TableSettings, list[list[Checkpoint]]]:
    """Return what the table in `path` is, and the newest checkpoint of each of its shards as a chain.

    A path may also be the folder of one checkpoint, which is then taken whatever lies beside it.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
    chains = [Checkpoint.newest(each) for each in paths]
    settings = chains[0][-1].settings
    for chain in chains[1:]:
        settings.must_match(chain[-1].settings)
    old = sorted({(chain[-1].settings.shard, chain[-1].settings.num_shards) for chain in chains})
    if old != [(number, len(chains)) for number in range(len(chains))]:
        raise TableError(
            f"the checkpoints hold the shards {', '.join(f'{number} of {total}' for number, total in old)}",
            hint="give one checkpoint of each shard of one table",
        )
    return settings, chains


def optimizer_of(settings: TableSettings, given: RowOptimizer | None) -> RowOptimizer:
    """Return what updates the rows of a table that is loaded: as it was saved, or with other rates.

    Rows that count their own steps go on to do so under Adam: `adam` was that once.
    """
    saved = settings.row_optimizer()
    if given is None:
        return saved
    if isinstance(saved, AdamPerRow) and isinstance(given, Adam):
        return AdamPerRow(**asdict(given))
    if isinstance(saved, PrivateSGD) and isinstance(given, PrivateSGD) and saved.looked_at:
        for name in ("learning_rate", "deviation", "schedule", "stream"):
            if getattr(saved, name) != getattr(given, name):
                raise TableError(
                    f"rows that owe noise were saved with {name.replace('_', ' ')} {getattr(saved, name)}, and are "
                    f"loaded with {getattr(given, name)}",
                    hint="go on as the run began: what rows owe hangs on every step since they were last looked up",
                )
    if described(given)["name"] != described(saved)["name"]:
        raise TableError(
            f"the rows have the state of {described(saved)['name']}, not of {described(given)['name']}",
            hint="load them with the optimizer that they were saved with; its rates may differ",
        )
    return given


def looks_of(chains: Sequence[Sequence[Checkpoint]]) -> set[int]:
    """Return the steps at which a table whose rows owe noise was saved as a whole."""
    saved = [chain[-1].settings.row_optimizer() for chain in chains]
    return {step for each in saved if isinstance(each, PrivateSGD) for step in each.looked_at}


def fill(store: TieredStore, chains: Sequence[Sequence[Checkpoint]], *, shard: int, num_shards: int) -> None:
    """Take in the rows of `shard` from chains of a full checkpoint and its deltas, oldest first."""
    for checkpoint in (each for chain in chains for each in chain):
        for part in checkpoint.parts():
            if len(part.tombstones):
                store.remove(np.unique(part.tombstones))
            for start in range(0, len(part.keys), MOST_AT_ONCE):
                piece = slice(start, start + MOST_AT_ONCE)
                mine = shard_of(part.keys[piece], num_shards) == shard
                keys = part.keys[piece][mine]
                store.put(keys, part.rows[piece][mine])
                states = np.full(len(keys), SAVED, dtype=np.int32)
                store.set_metadata(keys, part.seen[piece][mine], part.counts[piece][mine], states)
    store.clock.step = max([store.clock.step, *(chain[-1].settings.step for chain in chains)])
