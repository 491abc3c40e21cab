"""What a checkpoint holds, without making a table of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.checkpoints.format import Checkpoint, TableSettings
from dovetail.embedding.errors import TableError
from dovetail.embedding.tiers.device.budget import bytes_for
from dovetail.embedding.tiers.hit_ratio import by_parts, hit_ratio, least_rows


class ChainLink(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of a chain."""

    name: str
    kind: str
    rows: int
    tombstones: int
    bytes: int


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A device tier of so many rows: the device_bytes it takes, and what part of look-ups will hit, foretold."""

    rows: int
    device_bytes: int
    hit_ratio: float


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of checkpoints as one table: its rows, where they lay, and which are hot."""

    rows: int
    host_rows: int
    disk_rows: int
    device_rows: int
    width: int
    optimizer: dict[str, Any]
    seed: int
    step: int
    shard: int
    num_shards: int
    chain: list[ChainLink]
    hot_keys: list[tuple[int, int]]
    rows_by_count: list[tuple[str, int]]
    budgets: list[Budget]
    """For parts of all rows."""
    least_budget: Budget | None
    """The least that reaches the hit ratio asked for."""
    largest_value: float
    num_not_finite: int


def inspect(path: str | Path, *, num_hot: int = 10, wanted_hit_ratio: float | None = None) -> CheckpointSummary:
    """Return what the newest checkpoint in `path` holds, every file checked."""
    chain = Checkpoint.newest(Path(path))
    links: list[ChainLink] = []
    later = np.empty(0, dtype=np.int64)
    keys: list[NDArray[np.int64]] = []
    counts: list[NDArray[np.int32]] = []
    largest, not_finite = 0.0, 0
    width = chain[-1].settings.width
    for checkpoint in reversed(chain):  # a newer row or tombstone hides what older checkpoints have of its key
        here, gone = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for part in checkpoint.parts():
            current = ~np.isin(part.keys, later)
            keys.append(part.keys[current])
            counts.append(part.counts[current])
            values = part.rows[current, :width]
            finite = np.isfinite(values)
            not_finite += int((~finite).sum())
            largest = max(largest, float(np.abs(values[finite]).max(initial=0.0)))
            here.append(part.keys)
            gone.append(part.tombstones)
        later = np.unique(np.concatenate([later, *here, *gone]))
        links.insert(
            0,
            ChainLink(
                name=checkpoint.name,
                kind=checkpoint.manifest.kind,
                rows=checkpoint.manifest.num_rows,
                tombstones=sum(len(part) for part in gone),
                bytes=sum(file.stat().st_size for file in checkpoint.path.iterdir()),
            ),
        )
    all_keys, all_counts = np.concatenate(keys), np.concatenate(counts)
    hottest = np.lexsort((all_keys, -all_counts))[:num_hot]
    settings, manifest = chain[-1].settings, chain[-1].manifest
    return CheckpointSummary(
        rows=len(all_keys),
        host_rows=manifest.host_rows,
        disk_rows=manifest.disk_rows,
        device_rows=manifest.device_rows,
        width=width,
        optimizer=settings.optimizer,
        seed=settings.seed,
        step=settings.step,
        shard=settings.shard,
        num_shards=settings.num_shards,
        chain=links,
        hot_keys=[(int(all_keys[i]), int(all_counts[i])) for i in hottest],
        rows_by_count=_by_count(all_counts),
        budgets=[_budget(rows, ratio, settings) for rows, ratio in by_parts(all_counts)],
        least_budget=None if wanted_hit_ratio is None else _least_budget(all_counts, wanted_hit_ratio, settings),
        largest_value=largest,
        num_not_finite=not_finite,
    )


def _budget(rows: int, ratio: float, settings: TableSettings) -> Budget:
    return Budget(rows=rows, device_bytes=bytes_for(rows, settings.row_width), hit_ratio=ratio)


def _least_budget(counts: NDArray[np.int32], wanted: float, settings: TableSettings) -> Budget:
    """Return the least budget that reaches a hit ratio; refuse one that none does."""
    rows_by_count = np.bincount(counts)
    if (rows := least_rows(rows_by_count, wanted)) is None:
        most = hit_ratio(rows_by_count, len(counts))
        raise TableError(
            f"no device reaches a hit ratio of {wanted:.1%}: with all {len(counts):,} rows there it is {most:.1%}, "
            "and the other look-ups are of rows not seen yet",
            hint=f"ask for {np.floor(1000 * most) / 1000:g} or less" if most else "let the table be looked up first",
        )
    return _budget(rows, hit_ratio(rows_by_count, rows), settings)


def _by_count(counts: NDArray[np.int32]) -> list[tuple[str, int]]:
    """Return how many rows have each access count, in bins that double: 0, 1, 2-3, 4-7, ..."""
    bins = np.where(counts > 0, np.floor(np.log2(np.maximum(counts, 1))) + 1, 0).astype(np.int64)
    names = ["0", "1"] + [f"{1 << power}-{(2 << power) - 1}" for power in range(1, 16)]
    return [(names[number], int(rows)) for number, rows in enumerate(np.bincount(bins))]
