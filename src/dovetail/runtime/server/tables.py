"""The tables of a run: made new, or filled from a checkpoint that any number of servers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.embedding import Table, make_row_optimizer
from dovetail.runtime.blueprint import Blueprint, table_seed
from dovetail.runtime.checkpoint import Manifest


def load_table(
    blueprint: Blueprint,
    checkpoint: Manifest,
    folder: Path,
    position: int,
    *,
    cold: Path,
    server: int = 0,
    device: str = "cuda",
    device_bytes: int | None = None,
    threads: int = 1,
) -> Table:
    """Return one table with a server's rows, as they are in the checkpoint in `folder`; cold rows go into `cold`.

    With `device_bytes`, hot rows lie on a device.
    """
    spec = blueprint.tables[position]
    budget = blueprint.run.servers.host_bytes // max(1, len(blueprint.tables))
    settings = dict(blueprint.row_optimizer)
    optimizer = make_row_optimizer(str(settings.pop("name")), **settings)  # type: ignore[arg-type]
    place: dict[str, Any] = {
        "host_bytes": budget,
        "folder": cold,
        "shard": server,
        "num_shards": blueprint.num_servers,
        "device": device,
        "device_bytes": device_bytes,
        "threads": threads,
    }
    if not checkpoint.num_servers:
        seed = table_seed(blueprint.values_seed, position)
        table = Table(width=spec.width, optimizer=optimizer, seed=seed, scale=spec.scale, **place)
    else:
        parts = [checkpoint.table_at(folder, position, old) for old in range(checkpoint.num_servers)]
        table = Table.load(parts, optimizer=optimizer, **place)
    if spec.max_norm is not None:
        table.limit_norms(spec.max_norm, norm_type=spec.norm_type)
    return table


def load_tables(
    blueprint: Blueprint, checkpoint: Manifest, folder: Path, *, cold: Path, server: int, threads: int
) -> list[Table]:
    """Return all tables of a server."""
    return [
        load_table(
            *(blueprint, checkpoint, folder, position),
            cold=cold / f"table-{position}",
            server=server,
            threads=threads,
        )
        for position in range(len(blueprint.tables))
    ]
