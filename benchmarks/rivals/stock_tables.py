"""A CTR-DNN in stock PyTorch with the whole table in host memory or in GPU memory."""

from __future__ import annotations

import itertools
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from zipf_keys import Batches


def dense_layers(inputs: int, hidden: list[int], device: str) -> nn.Sequential:
    """Return the layers over the vectors of a sample: two scores."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, *hidden]):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(hidden[-1], 2)).to(device)


class StockModel:
    """An `nn.Embedding` with sparse gradients on one device, layers on the GPU, Adagrad for both."""

    def __init__(self, num_rows: int, width: int, slots: int, hidden: list[int], table_on: str, rate: float) -> None:
        weight = torch.empty((num_rows, width), device=table_on)
        if table_on == "cpu":
            weight.fill_(0.01)  # random numbers for 13 GB take one core a minute, and no step is faster for them
        else:
            nn.init.uniform_(weight, -1 / 3 / width**0.5, 1 / 3 / width**0.5)
        self.table = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
        self.layers = dense_layers(slots * width, hidden, "cuda")
        self.table_on = table_on
        self.optimizers = [
            torch.optim.Adagrad(self.layers.parameters(), lr=rate),
            torch.optim.Adagrad(self.table.parameters(), lr=rate),
        ]

    def scores(self, keys: Tensor, samples: int) -> Tensor:
        """Return the scores of a batch."""
        vectors = self.table(keys.to(self.table_on, non_blocking=True)).view(samples, -1)
        return self.layers(vectors.to("cuda", non_blocking=True))

    def step(self, keys: Tensor, labels: Tensor) -> None:
        """Train on one batch."""
        scores = self.scores(keys, len(labels))
        functional.cross_entropy(scores, labels.to("cuda", non_blocking=True)).backward()
        for optimizer in self.optimizers:
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def run_stock(model: StockModel, batches: Batches, *, first: int, last: int, warm: int) -> float:
    """Train on batches `first` to `last`; return samples/s after the first `warm`."""
    begun_s = time.perf_counter()
    for number in range(first, last):
        if number == first + warm:
            torch.cuda.synchronize()
            begun_s = time.perf_counter()
        keys, labels = torch.from_numpy(batches.keys[number]), torch.from_numpy(batches.labels[number])
        if model.table_on != "cpu":
            keys, labels = keys.pin_memory(), labels.pin_memory()
        model.step(keys, labels)
    torch.cuda.synchronize()
    return (last - first - warm) * batches.labels.shape[1] / (time.perf_counter() - begun_s)
