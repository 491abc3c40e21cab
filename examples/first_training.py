"""A PyTorch model of your own, trained on a file of your own: python first_training.py clicks.parquet runs/mine."""

import sys

import torch
from torch import Tensor, nn

import dovetail
from dovetail.models import SlotEmbedding


class MyModel(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.rows = SlotEmbedding(num_rows=100_000, width=width, num_slots=26)
        self.layers = nn.Sequential(nn.Linear(26 * width + 13, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        return self.layers(torch.cat([self.rows(ids, offsets), dense], dim=1))


if __name__ == "__main__":  # workers import this file
    data, folder = sys.argv[1:]
    print(dovetail.train(MyModel(), data, folder=folder, samples=180_000, batch=1000, lr=1e-2))
