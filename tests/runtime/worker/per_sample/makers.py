"""Models, samples, and the clipped sum found the long way: one sample after the other, by PyTorch alone."""

import copy

import numpy as np
import torch
from torch import nn

from dovetail.data.batch import Batch
from dovetail.runtime.model.parameters import sparse_modules
from dovetail.runtime.worker.compute.computer import Computer
from dovetail.runtime.worker.compute.per_sample.clipped import ClippedGradients
from dovetail.runtime.worker.compute.per_sample.rows import SampleRows
from dovetail.runtime.worker.compute.served_model import ServedModel

NUM_IDS = 30


def words_batch(num_samples, *, seed=0, length=6):
    """Return samples of words, of which the first has one word again and again, and of nine numbers."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(0, NUM_IDS, (num_samples, length), generator=draw)
    words[0] = words[0, 0]
    return Batch(
        sample_ids=torch.arange(num_samples),
        dense=torch.randn(num_samples, 9, generator=draw),
        ids=torch.zeros(0, dtype=torch.int64),
        offsets=torch.zeros(1, dtype=torch.int64),
        labels=torch.randint(0, 2, (num_samples,), generator=draw).float(),
        extra={"words": words, "x": torch.randn(num_samples, 9, generator=draw)},
    )


def one_by_one(model, batch, clip):
    """Return the clipped sum for each parameter by name, and the norms, of one backward pass a sample."""
    plain = copy.deepcopy(model)
    named = {name: each for name, each in plain.owner.named_parameters() if each.requires_grad}
    sums = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in named.items()}
    norms = []
    for place in range(batch.num_samples):
        plain.zero_grad()
        plain.outcome(batch.slice(place, place + 1))[0].backward()
        gradients = {name: each.grad.to_dense().double() for name, each in named.items() if each.grad is not None}
        norms.append(sum(float(each.square().sum()) for each in gradients.values()) ** 0.5)
        factor = min(1.0, clip / norms[-1]) if norms[-1] else 1.0
        for name, each in gradients.items():
            sums[name] += factor * each
    return sums, np.array(norms)


class Clipped:
    """A model whose gradients are clipped, with rows that lie in its own copy of the tables."""

    def __init__(self, model, clip):
        """Make it of a copy."""
        self.said = []
        tables = sparse_modules(model)
        self._weights = [each.module.weight.detach().clone().numpy() for each in tables]
        self._names = [each.name for each in tables]
        self.model = ServedModel(copy.deepcopy(model).train(), SampleRows(1), torch.device("cpu"))
        self._computer = Computer(self.model, ClippedGradients(self.model, clip, self.said.append))

    def sums(self, batch):
        """Return the clipped sum for each parameter by name."""
        self.model.gradients.zero_()
        done = self._computer.compute(batch, [], lambda wanted: self._weights[wanted.table][wanted.keys], where="here")
        found = {
            name: each.grad.clone() for name, each in self.model.graph.owner.named_parameters() if each.grad is not None
        }
        for number, (name, weights) in enumerate(zip(self._names, self._weights, strict=True)):
            total = torch.zeros(weights.shape)
            for wanted, values in done.rows:
                if wanted.table == number:
                    total.index_add_(0, torch.from_numpy(wanted.keys), torch.from_numpy(values))
            found[f"{name}.weight"] = total
        return found


def assert_same(found, expected):
    """Check sums by name: each as close as its largest number has digits."""
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        most = float(each.abs().max())
        np.testing.assert_allclose(found[name].double(), each, rtol=1e-5, atol=1e-5 * most + 1e-9, err_msg=name)


class Everything(nn.Module):
    """Two tables, one with padding and one of bags, a dense table, a layer called twice, norms and a convolution."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(NUM_IDS, 8, sparse=True, padding_idx=0)
        self.bags = nn.EmbeddingBag(NUM_IDS, 4, sparse=True, mode="mean")
        self.dense_rows = nn.Embedding(11, 8)
        self.fc, self.norm, self.rms, self.group = nn.Linear(8, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 4)
        self.conv, self.out = nn.Conv1d(8, 4, 3, padding=1), nn.Linear(4 * 6 + 4, 1)

    def forward(self, words):
        """Return one score a sample."""
        looked_up = self.rows(words) + self.dense_rows(words % 11)
        hidden = self.rms(torch.relu_(self.fc(self.norm(torch.relu(self.fc(looked_up))))))
        convolved = self.group(self.conv(hidden.transpose(1, 2))).flatten(1)
        return self.out(torch.cat([convolved, self.bags(words)], 1)).squeeze(1)


class Attention(nn.Module):
    """A table under a layer of PyTorch's whose parameters no rule is known for."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(NUM_IDS, 8, sparse=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, words):
        """Return one score a sample."""
        return self.out(self.encoder(self.rows(words)).mean(1)).squeeze(1)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(NUM_IDS, 6, sparse=True)
        self.one, self.other, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.other.weight = self.one.weight

    def forward(self, words):
        """Return one score a sample."""
        return self.out(self.other(torch.tanh(self.one(self.rows(words))))).squeeze(-1).sum(1)


class UsedElsewhere(Tied):
    """A weight that is used outside of its layer."""

    def forward(self, words):
        """Return one score a sample."""
        return super().forward(words) + self.one.weight.sum() * self.rows(words).sum((1, 2))


class OwnParameters(nn.Module):
    """Parameters beside a table, and a layer that takes one row a word, not one a sample."""

    def __init__(self):
        super().__init__()
        self.rows, self.scale, self.fc = (
            nn.Embedding(NUM_IDS, 8, sparse=True),
            nn.Parameter(torch.ones(8)),
            nn.Linear(8, 1),
        )

    def forward(self, words):
        """Return one score a sample."""
        return self.fc((self.rows(words) * self.scale).mean(1)).squeeze(1)


class Flattened(nn.Module):
    """A layer that gets words, of which a sample has several, one below the other."""

    def __init__(self):
        super().__init__()
        self.rows, self.fc = nn.Embedding(NUM_IDS, 8, sparse=True), nn.Linear(8, 1)

    def forward(self, words):
        """Return one score a sample."""
        return self.fc(self.rows(words.flatten())).view(words.shape).sum(1)


class Transposed(nn.Module):
    """Layers whose inputs have words first: with as many words as samples nobody sees by the shape."""

    def __init__(self):
        super().__init__()
        self.rows, self.fc = nn.Embedding(NUM_IDS, 8, sparse=True), nn.Linear(8, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, words):
        """Return one score a sample."""
        return self.out(torch.tanh(self.fc(self.rows(words.T))).sum(0)).squeeze(1)
