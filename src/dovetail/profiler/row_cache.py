"""What it costs to keep only some rows of an embedding on a device: how many look-ups miss, and what a miss takes.

On a device that is here, a batch that finds none of its rows there is measured. For one elsewhere it is estimated:

    miss_s = rows of a batch * (2 * bytes of a row / bus + host)        a row comes up, another goes down

where `host` is what the host's table takes to find, read and write a row, measured here on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dovetail.data import Batch
from dovetail.embedding import ROW_OPTIMIZERS, Table, make_row_optimizer
from dovetail.embedding.tiers.device.budget import bytes_for
from dovetail.embedding.tiers.hit_ratio import by_parts
from dovetail.models import SlotEmbedding
from dovetail.models.embedding import select_slots
from dovetail.spec import RowCacheCurve

TURNS = 4
"""Batches without a key in common that take turns on a device with room for two of them: every row is missed."""
ROUNDS = 6

Keys = NDArray[np.int64]


def keys_of(module: nn.Module, batch: Batch) -> Keys | None:
    """Return the distinct keys that a layer looks up, or None where it is no table over the batch's ids."""
    if isinstance(module, SlotEmbedding):
        ids, _ = select_slots(batch.ids, batch.offsets, module.num_slots, module.first_slot, module.last_slot)
        return np.unique((ids % module.num_rows).numpy())
    return np.unique(batch.ids.numpy()) if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None


def measure_row_cache(batches: Sequence[Keys], *, width: int, optimizer: str, device: str) -> RowCacheCurve | None:
    """Return the curve of hits over bytes, by the keys of batches, and the seconds of a batch that finds no row there.

    None where rows are stepped by an optimizer that tables lack, or where the batches share no keys.
    """
    curve = _curve(batches, width, optimizer)
    if not curve:
        return None
    num_rows = int(np.mean([len(keys) for keys in batches]))
    missing_s = _batch_seconds(num_rows, width, optimizer, device, device_batches=2)
    found_s = _batch_seconds(num_rows, width, optimizer, device, device_batches=TURNS + 1)
    return RowCacheCurve(
        hits=curve, miss_s=max(0.0, missing_s - found_s), least_bytes=_least_bytes(batches, width, optimizer)
    )


def estimate_row_cache(
    batches: Sequence[Keys], *, width: int, optimizer: str, bus_bytes_per_s: float
) -> RowCacheCurve | None:
    """Return the same for a device that is not here, by the rate of its bus."""
    curve = _curve(batches, width, optimizer)
    if not curve:
        return None
    num_rows = int(np.mean([len(keys) for keys in batches]))
    row_bytes = 4 * (width + make_row_optimizer(optimizer).state_width(width))
    bus_s = 2 * num_rows * row_bytes / bus_bytes_per_s
    miss_s = bus_s + _host_seconds(num_rows, width, optimizer)
    return RowCacheCurve(hits=curve, miss_s=miss_s, least_bytes=_least_bytes(batches, width, optimizer))


def _curve(batches: Sequence[Keys], width: int, optimizer: str) -> tuple[tuple[float, float], ...]:
    """Return the part of look-ups that find their rows, by the bytes given to rows; nothing where none would."""
    if optimizer not in ROW_OPTIMIZERS:
        return ()
    row_width = width + make_row_optimizer(optimizer).state_width(width)
    _, counts = np.unique(np.concatenate(list(batches)), return_counts=True)
    curve = [(float(bytes_for(rows, row_width)), ratio) for rows, ratio in by_parts(counts.astype(np.int32))]
    curve = [point for number, point in enumerate(curve) if number == 0 or point[0] > curve[number - 1][0]]
    return tuple(curve) if curve and curve[-1][1] > 0.0 else ()


def _least_bytes(batches: Sequence[Keys], width: int, optimizer: str) -> float:
    """Return what the rows of the largest batch take."""
    row_width = width + make_row_optimizer(optimizer).state_width(width)
    return float(bytes_for(max(map(len, batches)), row_width))


def _host_seconds(num_rows: int, width: int, optimizer: str) -> float:
    """Return the median seconds that a table in host memory takes to read and write a batch's rows, on one thread."""
    rng = np.random.default_rng(0)
    keys = rng.permutation(TURNS * num_rows)
    gradients = np.zeros((num_rows, width), dtype=np.float32)
    took = []
    with Table(
        width=width, optimizer=make_row_optimizer(optimizer), host_bytes=1 << 33, expected_rows=len(keys)
    ) as table:
        for turn in range(TURNS * (1 + ROUNDS)):
            mine = keys[turn % TURNS * num_rows :][:num_rows]
            begun_s = time.perf_counter()
            _, where = table.lookup_distinct(mine)
            table.update_distinct(mine, gradients, where=where)
            if turn >= TURNS:  # the first round makes the rows
                took.append(time.perf_counter() - begun_s)
    return float(np.median(took))


def _batch_seconds(num_rows: int, width: int, optimizer: str, device: str, *, device_batches: int) -> float:
    """Return the median seconds of look-up and step where the device has room for so many batches' rows."""
    turns = [np.arange(turn * num_rows, (turn + 1) * num_rows) for turn in range(TURNS)]
    table = Table(
        width=width,
        optimizer=make_row_optimizer(optimizer),
        device=device,
        device_rows=device_batches * num_rows + 1,
        device_bytes=bytes_for(device_batches * num_rows + 1, 4 * width),
        host_bytes=1 << 33,
        expected_rows=TURNS * num_rows,
    )
    try:
        if table.on_device is None:
            raise AssertionError("a table was made on a device and is not")
        rows, took = table.on_device, []
        for round_number in range(ROUNDS + 1):
            begun_s = time.perf_counter()
            for keys in turns:
                rows.announce(keys)
            for _ in turns:
                batch = rows.look_up()
                batch.step(torch.zeros_like(batch.values()))
                batch.release()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if round_number:  # the first makes the rows
                took.append((time.perf_counter() - begun_s) / TURNS)
        return float(np.median(took))
    finally:
        table.close()
