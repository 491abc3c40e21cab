"""Train a table and save it again and again, saying so after each save; somebody will kill this process.

python -m tests.embedding.train_until_killed FOLDER
"""

import sys
from pathlib import Path

import numpy as np

from dovetail.embedding import Adagrad, Table

WIDTH = 4


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys and gradients of one step."""
    random = np.random.default_rng(step)
    return random.integers(0, 400, 60), random.normal(size=(60, WIDTH)).astype(np.float32)


def train(folder: Path) -> None:
    """Go on from the newest checkpoint; full ones and deltas take turns."""
    size = {"host_rows": 50, "folder": folder / "rows", "segment_bytes": 2000}
    saved = folder / "saved"
    table = Table.load(saved, **size) if saved.exists() and any(saved.glob("0*")) else None
    table = table or Table(width=WIDTH, optimizer=Adagrad(), **size)
    number = 0
    while True:
        for _ in range(3):
            keys, gradients = batch_of(table.step)
            table.lookup(keys)
            table.update(keys, gradients)
        future = table.save_beside(saved, kind="delta" if number % 4 else "full")
        step = table.step
        keys, gradients = batch_of(step)
        table.lookup(keys)
        table.update(keys, gradients)
        print(f"{step} {future.result(timeout=150).name}", flush=True)
        number += 1


if __name__ == "__main__":
    train(Path(sys.argv[1]))
