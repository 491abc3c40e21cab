"""A model of your own, on data with a known best result: build it, cut it into layers, train it.

    python examples/own_model.py

`build` is all that Dovetail asks for: a function that returns a module. Its name for the command line would be
`examples/own_model.py:build`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dovetail.data import Clicks, Loader
from dovetail.models import Auc, SlotEmbedding, evaluate, load_model, make_optimizer, make_schedule, train_step

NUM_SAMPLES = 120_000
BATCH = 500
DATA = Clicks(truth="logistic", num_slots=8, num_multi_valued=2, num_dense=4, rows_per_slot=20)


class WideAndDeep(nn.Module):
    """A linear part that remembers, and a deep part that generalises.

    The arguments of `forward` are named after fields of a batch: that is how Dovetail knows what to pass.
    """

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        rows, slots = 8 * 20, 8
        self.wide = SlotEmbedding(num_rows=rows, width=1, num_slots=slots)
        self.deep = SlotEmbedding(num_rows=rows, width=width, num_slots=slots)
        self.hidden = nn.Linear(slots * width + 4, 32)
        self.out = nn.Linear(32 + slots, 1)

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        hidden = torch.relu(self.hidden(torch.cat([self.deep(ids, offsets), dense], dim=1)))
        return self.out(torch.cat([hidden, self.wide(ids, offsets)], dim=1))


def build(width: int = 8) -> nn.Module:
    """Return the model; Dovetail adds the loss and draws the initial values."""
    return WideAndDeep(width)


def main() -> None:
    """Train the model and compare it with the best there can be."""
    torch.set_num_threads(1)
    model = load_model(f"{__file__}:build", loss="logistic", seed=1, width=6)
    for block in model.blocks:
        read = ", ".join([*(block.after or ()), *block.reads])
        print(f"{block.name:<12} {block.kind:<12} reads {read}")
    optimizer = make_optimizer(model, "adam", 5e-3)
    schedule = make_schedule("cosine", total_steps=NUM_SAMPLES // BATCH)
    for step, batch in enumerate(Loader(DATA, batch_size=BATCH, stop=NUM_SAMPLES)):
        train_step(model, batch, optimizer, factor=schedule(step))
    held_out = DATA.read(10_000_000, 10_100_000)
    print(f"AUC {evaluate(model, [held_out], Auc()):.4f}, the best reachable {DATA.best_auc():.4f}")


if __name__ == "__main__":
    main()
