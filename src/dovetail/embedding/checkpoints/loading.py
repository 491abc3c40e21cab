"""Loading checkpoints into a store: of one table or of all shards of one, into any shard of any number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
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
    if described(given)["name"] != described(saved)["name"]:
        raise TableError(
            f"the rows have the state of {described(saved)['name']}, not of {described(given)['name']}",
            hint="load them with the optimizer that they were saved with; its rates may differ",
        )
    return given


def saved_private(path: str | Path | Sequence[str | Path]) -> PrivateSGD | None:
    """Return what rows of a table owed when it was saved, with the looks of all its shards; None: nothing."""
    settings, chains = find_chains(path)
    saved = [chain[-1].settings.row_optimizer() for chain in chains]
    looks = sorted({each for one in saved if isinstance(one, PrivateSGD) for each in one.looks})
    optimizer = settings.row_optimizer()
    return replace(optimizer, looks=tuple(looks)) if isinstance(optimizer, PrivateSGD) else None


def fill(
    store: TieredStore,
    chains: Sequence[Sequence[Checkpoint]],
    *,
    shard: int,
    num_shards: int,
    before: OwedNoise | None = None,
) -> None:
    """Take in the rows of `shard` from chains of a full checkpoint and its deltas, oldest first.

    Rows that owed other noise `before` than from now on get it.
    """
    for checkpoint in (each for chain in chains for each in chain):
        for part in checkpoint.parts():
            if len(part.tombstones):
                store.remove(np.unique(part.tombstones))
            for start in range(0, len(part.keys), MOST_AT_ONCE):
                piece = slice(start, start + MOST_AT_ONCE)
                mine = shard_of(part.keys[piece], num_shards) == shard
                keys, rows = part.keys[piece][mine], part.rows[piece][mine]
                if before is not None:
                    before.add_to(rows[:, : store.width], keys, rows[:, store.width].copy())
                    rows[:, store.width] = before.step
                store.put(keys, rows)
                states = np.full(len(keys), SAVED, dtype=np.int32)
                store.set_metadata(keys, part.seen[piece][mine], part.counts[piece][mine], states)
    store.clock.step = max([store.clock.step, *(chain[-1].settings.step for chain in chains)])
