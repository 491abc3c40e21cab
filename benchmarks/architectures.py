"""Ten public architectures, written anew as their users would write them, and data that each can learn from.

Sizes are small: what is compared is where training ends, and what it costs beside plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from dovetail.data import Batch, Clicks, Schema, Slot

L = TypeVar("L", nn.Embedding, nn.EmbeddingBag)
SLOTS, NUMBERS, WIDTH, ROWS = 8, 4, 8, 50
LENGTH, WORDS = 12, 40
SIDE, CLASSES = 8, 4
CLICKS = Clicks(truth="logistic", num_slots=SLOTS, num_multi_valued=0, num_dense=NUMBERS, rows_per_slot=ROWS)


@dataclass(frozen=True)
class Sequences:
    """Words in order: a 1 where the first half has more small ones than the second."""

    num_samples: int | None = None

    @property
    def schema(self) -> Schema:
        """A slot for each place."""
        return Schema(slots=tuple(Slot(name=f"word{place}", num_keys=WORDS) for place in range(LENGTH)))

    def read(self, first: int, last: int) -> Batch:
        """Return samples, each from its own number."""
        words = _draws(first, last, LENGTH, 1 << 31) % WORDS
        small = (words < WORDS // 2).float()
        labels = small[:, : LENGTH // 2].sum(dim=1) > small[:, LENGTH // 2 :].sum(dim=1)
        return Batch(
            sample_ids=torch.arange(first, last),
            dense=torch.zeros(last - first, 0),
            ids=words.reshape(-1),
            offsets=torch.arange(0, words.numel() + 1),
            labels=labels.float(),
        )


@dataclass(frozen=True)
class Images:
    """Noise with a bright corner: which of the four it is."""

    num_samples: int | None = None

    @property
    def schema(self) -> Schema:
        """A number for each point."""
        return Schema(dense=tuple(f"point{point}" for point in range(SIDE * SIDE)))

    def read(self, first: int, last: int) -> Batch:
        """Return samples, each from its own number."""
        draws = _draws(first, last, SIDE * SIDE + 1, 1 << 31)
        labels = draws[:, -1] % CLASSES
        points = (draws[:, :-1] % 1000).float().div(250.0).sub(2.0).view(-1, SIDE, SIDE)
        corner = torch.zeros(CLASSES, SIDE, SIDE)
        half = SIDE // 2
        for number in range(CLASSES):
            corner[number, number // 2 * half :, number % 2 * half :][:half, :half] = 0.6
        return Batch(
            sample_ids=torch.arange(first, last),
            dense=(points + corner[labels]).view(-1, SIDE * SIDE),
            ids=torch.zeros(0, dtype=torch.int64),
            offsets=torch.zeros(1, dtype=torch.int64),
            labels=labels.float(),
        )


def _draws(first: int, last: int, count: int, below: int) -> Tensor:
    """Return whole numbers that depend on a sample's number alone: int64 [n, count]."""
    word = torch.arange(first * count, last * count, dtype=torch.int64) * 0x9E3779B97F4A7C + 12345
    word = (word ^ (word >> 29)) * 0x2545F4914F6CDD1D
    word = (word ^ (word >> 32)) * 0x369DEA0F31A53F85
    return ((word ^ (word >> 31)) & (below - 1)).view(-1, count)


def tower(*widths: int) -> nn.Sequential:
    """Return fully connected layers with ReLU between."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _small(layer: L) -> L:
    """Give a table first values such as servers give: small and uniform."""
    width = layer.embedding_dim
    nn.init.uniform_(layer.weight, -1 / 3 / width**0.5, 1 / 3 / width**0.5)
    return layer


class Embedded(nn.Module):
    """A table for all slots, whose rows lie on the servers."""

    def __init__(self) -> None:
        """Make the table."""
        super().__init__()
        self.table = _small(nn.Embedding(SLOTS * ROWS, WIDTH, sparse=True))

    def vectors(self, ids: Tensor) -> Tensor:
        """Return [n, slots, width]."""
        return self.table(ids.view(-1, SLOTS))


class Dlrm(Embedded):
    """Products of every two vectors, one of which comes from the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = tower(NUMBERS, 16, WIDTH)
        pairs = (SLOTS + 1) * SLOTS // 2
        self.top = tower(WIDTH + pairs, 32, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom[:, None], self.vectors(ids)], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        rows, columns = torch.tril_indices(SLOTS + 1, SLOTS + 1, offset=-1)
        return self.top(torch.cat([bottom, products[:, rows, columns]], dim=1))


class DeepFm(Embedded):
    """A factorisation machine beside a tower over the same vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = _small(nn.Embedding(SLOTS * ROWS, 1, sparse=True))
        self.numbers = nn.Linear(NUMBERS, 1)
        self.deep = tower(SLOTS * WIDTH + NUMBERS, 32, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        vectors = self.vectors(ids)
        pairs = 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1, keepdim=True)
        first = self.linear(ids.view(-1, SLOTS)).sum(dim=1) + self.numbers(dense)
        return first + pairs + self.deep(torch.cat([vectors.flatten(1), dense], dim=1))


class DcnV2(Embedded):
    """Crosses of the input with itself, as raw parameters, then a tower."""

    def __init__(self) -> None:
        super().__init__()
        size = SLOTS * WIDTH + NUMBERS
        self.weights = nn.Parameter(torch.randn(2, size, size) / size)
        self.biases = nn.Parameter(torch.zeros(2, size))
        self.deep = tower(size, 32, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        first = crossed = torch.cat([self.vectors(ids).flatten(1), dense], dim=1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            crossed = first * (crossed @ weight + bias) + crossed
        return self.deep(crossed)


class WideAndDeep(Embedded):
    """A linear part that remembers, and a deep part that generalises."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = _small(nn.EmbeddingBag(SLOTS * ROWS, 1, mode="sum", sparse=True))
        self.deep = tower(SLOTS * WIDTH + NUMBERS, 32, 16, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        deep = self.deep(torch.cat([self.vectors(ids).flatten(1), dense], dim=1))
        return deep + self.wide(ids.view(-1, SLOTS))


class TwoTower(Embedded):
    """Users on one side, items on the other, and their product."""

    def __init__(self) -> None:
        super().__init__()
        half = SLOTS // 2 * WIDTH
        self.user, self.item = tower(half, 32, 16), tower(half + NUMBERS, 32, 16)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        user, item = self.vectors(ids).split(SLOTS // 2, dim=1)
        item_side = self.item(torch.cat([item.flatten(1), dense], dim=1))
        return self.scale * (self.user(user.flatten(1)) * item_side).sum(dim=1)


class Din(Embedded):
    """Attention of the last slot, the candidate, over the others, its history."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = tower(4 * WIDTH, 16, 1)
        self.out = tower(2 * WIDTH + NUMBERS, 32, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        vectors = self.vectors(ids)
        history, candidate = vectors[:, :-1], vectors[:, -1:].expand(-1, SLOTS - 1, -1)
        pairs = torch.cat([history, candidate, history - candidate, history * candidate], dim=2)
        interest = (self.attention(pairs) * history).sum(dim=1)
        return self.out(torch.cat([interest, vectors[:, -1], dense], dim=1))


class ResNet(nn.Module):
    """Two residual blocks of convolutions with group norm; the second is the first, used again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
        )
        self.out = nn.Linear(8 * 4 * 4, CLASSES)

    def forward(self, dense: Tensor) -> Tensor:
        """Return one score a class."""
        hidden = torch.relu(self.stem(dense.view(-1, 1, SIDE, SIDE)))
        for _ in range(2):
            hidden = torch.relu(hidden + self.block(hidden))
        return self.out(nn.functional.adaptive_avg_pool2d(hidden, 4).flatten(1))


class Lstm(nn.Module):
    """A word at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return one score a sample."""
        outputs, _ = self.lstm(self.words(ids.view(-1, LENGTH)))
        return self.out(outputs.mean(dim=1))


class Encoder(nn.Module):
    """A transformer's encoder of two layers, places learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.places = nn.Parameter(torch.randn(LENGTH, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return one score a sample."""
        return self.out(self.layers(self.words(ids.view(-1, LENGTH)) + self.places).mean(dim=1))


class Mixer(nn.Module):
    """Towers over patches and over channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(4, 16)
        self.across, self.along = tower(16, 32, 16), tower(16, 32, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.out = nn.Linear(16, CLASSES)

    def forward(self, dense: Tensor) -> Tensor:
        """Return one score a class."""
        half = SIDE // 2
        cut = dense.view(-1, half, 2, half, 2).permute(0, 1, 3, 2, 4).reshape(-1, half * half, 4)
        hidden = self.patches(cut)
        hidden = hidden + self.across(self.norms[0](hidden).transpose(1, 2)).transpose(1, 2)
        hidden = hidden + self.along(self.norms[1](hidden))
        return self.out(self.norms[2](hidden).mean(dim=1))


@dataclass(frozen=True)
class Architecture:
    """A model, its data, and the learning rate that suits it."""

    name: str
    build: Callable[[], nn.Module]
    source: Clicks | Sequences | Images
    learning_rate: float


def architectures() -> list[Architecture]:
    """Return all ten, on data without end."""
    clicks, sequences, images = CLICKS, Sequences(), Images()
    return [
        Architecture("DLRM", Dlrm, clicks, 0.05),
        Architecture("DeepFM", DeepFm, clicks, 0.05),
        Architecture("DCN-v2", DcnV2, clicks, 0.05),
        Architecture("Wide & Deep", WideAndDeep, clicks, 0.05),
        Architecture("two-tower", TwoTower, clicks, 0.05),
        Architecture("DIN-like", Din, clicks, 0.05),
        Architecture("ResNet-like", ResNet, images, 0.03),
        Architecture("LSTM", Lstm, sequences, 0.05),
        Architecture("transformer encoder", Encoder, sequences, 0.02),
        Architecture("MLP-mixer", Mixer, images, 0.02),
    ]
