"""A PyTorch module of your own, trained over two workers and a parameter server, then used without them.

    python examples/train_own_model.py [FOLDER]

Rows of `SlotEmbedding`, and of PyTorch's embeddings with `sparse=True`, lie on the servers; so do all other parameters.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from torch import Tensor, nn

from dovetail.data import Clicks
from dovetail.models import Auc, SlotEmbedding, evaluate
from dovetail.runtime import train

DATA = Clicks(truth="logistic", num_slots=8, num_multi_valued=2, num_dense=4, rows_per_slot=20)


class WideAndDeep(nn.Module):
    """A linear part that remembers, and a deep part that generalises."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.wide = SlotEmbedding(num_rows=160, width=1, num_slots=8)
        self.deep = SlotEmbedding(num_rows=160, width=6, num_slots=8)
        self.hidden = nn.Linear(8 * 6 + 4, 32)
        self.out = nn.Linear(32 + 8, 1)

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample; the arguments are named after fields of a batch."""
        hidden = torch.relu(self.hidden(torch.cat([self.deep(ids, offsets), dense], dim=1)))
        return self.out(torch.cat([hidden, self.wide(ids, offsets)], dim=1))


if __name__ == "__main__":  # workers import this file: without this line each would start a run
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp() + "/run"
    result = train(
        WideAndDeep(), DATA, folder=folder, workers=2, samples=60_000, batch=1000, optimizer="adam", learning_rate=1e-2
    )
    print(f"{result.samples:,} samples, {result.samples_per_s:,.0f} a second")
    model = result.load_model()
    held_out = DATA.read(10_000_000, 10_050_000)
    print(f"AUC {evaluate(model, [held_out], Auc()):.4f}, the best reachable {DATA.best_auc():.4f}")
