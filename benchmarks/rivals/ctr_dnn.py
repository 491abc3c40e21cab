"""CTR-DNN in plain PyTorch, as one would write it without Dovetail, and batches of the data file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_SLOTS = 26
NUM_ROWS = 2_600_000
WIDTH = 16
NUM_DENSE = 13
HIDDEN = 400
LEARNING_RATES = {"adagrad": 0.01, "adam": 0.001}

Batch = tuple[Tensor, Tensor, Tensor]


class CtrDnn(nn.Module):
    """One table for all slots, three layers of 400, two scores."""

    def __init__(self, *, sparse: bool = True) -> None:
        """Make table and layers; `sparse` says of which kind the table's gradients are."""
        super().__init__()
        self.table = nn.Embedding(NUM_ROWS, WIDTH, sparse=sparse)
        nn.init.uniform_(self.table.weight, -1 / 12, 1 / 12)
        self.layers = nn.Sequential(
            nn.Linear(NUM_SLOTS * WIDTH + NUM_DENSE, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2),
        )

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return two scores a sample."""
        return self.layers(torch.cat([self.table(ids).flatten(1), dense], dim=1))


class RowsAndLayers:
    """Adagrad or Adam for the layers (one kernel for all of them) and for the rows that a batch touches."""

    def __init__(self, model: CtrDnn, name: str) -> None:
        """Make both."""
        kind = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[name]
        rows = list(model.table.parameters())
        self._parts = [kind(model.layers.parameters(), lr=LEARNING_RATES[name], fused=True)]
        if not model.table.sparse:
            self._parts.append(kind(rows, lr=LEARNING_RATES[name], fused=True))
        elif name == "adam":
            self._parts.append(torch.optim.SparseAdam(rows, lr=LEARNING_RATES[name]))
        else:
            self._parts.append(kind(rows, lr=LEARNING_RATES[name]))

    def step(self) -> None:
        """Update all parameters and forget the gradients."""
        for part in self._parts:
            with torch.sparse.check_sparse_tensor_invariants(enable=False):  # said aloud, else PyTorch warns
                part.step()
            part.zero_grad(set_to_none=True)


def train_step(model: nn.Module, optimizer: RowsAndLayers, batch: Batch) -> Tensor:
    """Train on one batch; return its loss."""
    ids, dense, labels = batch
    loss = functional.cross_entropy(model(ids, dense), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def load_batches(file: Path, batch: int, *, part: int = 0, num_parts: int = 1) -> Iterator[Batch]:
    """Return batches without end from memory: of each global batch, the `part`-th of `num_parts` equal shares."""
    share = batch // num_parts
    with np.load(file) as arrays:
        ids, dense, labels = (torch.from_numpy(arrays[name]) for name in ("ids", "dense", "labels"))
    starts = range(part * share, ids.shape[0] - batch + part * share + 1, batch)
    cut = [tuple(each[start : start + share].clone() for each in (ids, dense, labels)) for start in starts]
    return itertools.cycle(cut)
