"""A table several times larger than its memory: train it on skewed keys, look ahead, save it.

    python examples/large_table.py out/table

Each key has a hidden vector that its row should become; the error falls although most rows lie on disk.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from dovetail.data.clicks.popularity import FITTED, row_shares
from dovetail.embedding import Adagrad, Table, first_values, look_ahead
from dovetail.units import format_bytes

NUM_KEYS, WIDTH, BATCH, NUM_STEPS = 200_000, 16, 8192, 150


def main(saved: Path) -> None:
    """Train, say what happened, and save."""
    random = np.random.default_rng(0)
    edges = np.cumsum(row_shares(NUM_KEYS, FITTED))
    batches = [np.searchsorted(edges[:-1], random.random(BATCH)) for _ in range(NUM_STEPS)]
    errors = []
    with (
        tempfile.TemporaryDirectory() as rows,
        Table(width=WIDTH, optimizer=Adagrad(learning_rate=0.2), host_bytes=8_000_000, folder=rows) as table,
    ):
        for keys in look_ahead(batches, table, keys=lambda batch: batch, depth=8):
            difference = table.lookup(keys) - first_values(keys, width=WIDTH, seed=7, scale=1.0)
            table.update(keys, difference)
            errors.append(float(np.mean(difference**2)))
        shutil.rmtree(saved, ignore_errors=True)
        table.save(saved)
        stats = table.stats()
    print(
        f"{stats.num_rows:,} rows of {8 * WIDTH} bytes, {format_bytes(stats.num_rows * 8 * WIDTH)}, under a budget of "
        f"{format_bytes(stats.budget_bytes)}: {stats.host_rows:,} rows in RAM, {stats.disk_rows:,} on disk"
    )
    print(f"{stats.num_fetched:,} fetches for {stats.num_looked_up:,} rows looked up ({stats.miss_ratio:.1%})")
    print(f"mean squared error {errors[0]:.3f} at first, {np.mean(errors[-10:]):.3f} at the end; saved in {saved}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/table"))
