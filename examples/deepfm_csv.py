"""DeepFM from CSV files, with validation, early stopping and prediction: python examples/deepfm_csv.py."""

import random
from pathlib import Path

import torch
from torch import Tensor, nn

from dovetail.models import SlotEmbedding
from dovetail.runtime import train


class DeepFM(nn.Module):
    def __init__(self, num_rows: int = 1000, width: int = 8) -> None:
        super().__init__()
        self.weights = SlotEmbedding(num_rows=num_rows, width=1, num_slots=2)
        self.vectors = SlotEmbedding(num_rows=num_rows, width=width, num_slots=2)
        self.deep = nn.Sequential(nn.Linear(2 * width + 1, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        flat = self.vectors(ids, offsets)
        pairs = flat.unflatten(1, (2, -1)).prod(1).sum(1, keepdim=True)  # of two slots there is one
        return self.weights(ids, offsets).sum(1, keepdim=True) + pairs + self.deep(torch.cat([flat, dense], dim=1))


def write(path: str, num_rows: int) -> None:
    rows = [(random.random(), random.randrange(20), random.randrange(20)) for _ in range(num_rows)]
    lines = [f"{int(price + (user + item) % 2 > 1)},{price},u{user},i{item}\n" for price, user, item in rows]
    Path(path).write_text("label,price,user,item\n" + "".join(lines))


if __name__ == "__main__":
    write("train.csv", 20_000), write("valid.csv", 2_000)
    columns = {"dense": ["price"], "slots": ["user", "item"]}
    tried = {"validation": "csv", "validation_options": {"path": "valid.csv", **columns}, "early_stopping": 2}
    how = {"folder": "runs/deepfm", "workers": 2, "batch": 500, "epochs": 10, "learning_rate": 0.01, **tried}
    result = train(DeepFM(), "csv", data_options={"path": "train.csv", **columns}, **how)
    print("best validation loss", result.best.figures["loss"], "after", result.best.samples, "samples")
    print("first scores", result.predict("csv", path="valid.csv").probabilities[:5])
