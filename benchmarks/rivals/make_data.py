"""Make the samples that every side of a comparison loads, as one .npz file.

    python benchmarks/rivals/make_data.py out/rivals.npz

The file has `ids` int64 [n, 26], each slot's own 100,000 rows one after the other so that they number one table of
2,600,000, `dense` float32 [n, 13] and `labels` int64 [n]: the `clicks` data with one id a slot. All sides keep it in
memory, so that reading costs nobody anything.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

NUM_SLOTS = 26
ROWS_PER_SLOT = 100_000


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--samples", type=int, default=262_144)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_data(arguments.file, num_samples=arguments.samples, seed=arguments.seed)
    print(arguments.file)


def make_data(file: Path, *, num_samples: int, seed: int = 0) -> None:
    """Write `num_samples` samples into a file."""
    from dovetail.data import Clicks

    source = Clicks(num_slots=NUM_SLOTS, rows_per_slot=ROWS_PER_SLOT, num_multi_valued=0, seed=seed)
    batch = source.read(0, num_samples)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        file,
        ids=batch.ids.numpy().reshape(num_samples, NUM_SLOTS),
        dense=batch.dense.numpy(),
        labels=batch.labels.numpy().astype(np.int64),
    )


if __name__ == "__main__":
    main()
