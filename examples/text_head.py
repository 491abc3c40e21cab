"""The head of a text classifier: pip install datasets; python examples/text_head.py. Nothing is downloaded."""

import random

import torch
from datasets import Dataset
from torch import Tensor, nn

from dovetail.runtime import train

WORDS = ["<pad>", "good", "great", "fine", "bad", "awful", "poor", "film", "the", "was", "a", "plot", "and"]


def tokenize(row: dict[str, str]) -> dict[str, list[int]]:
    ids = [WORDS.index(word) for word in row["text"].split()][:8]
    return {"input_ids": ids + [0] * (8 - len(ids))}


class Head(nn.Module):
    """A frozen encoder, here of random vectors, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding.from_pretrained(torch.randn(len(WORDS), 32), freeze=True)
        self.head = nn.Linear(32, 1)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.encoder(input_ids).mean(dim=1))


if __name__ == "__main__":
    texts = [random.choice(WORDS[1:7]) + " " + " ".join(random.choices(WORDS[7:], k=5)) for _ in range(3000)]
    reviews = Dataset.from_dict({"text": texts, "label": [float(t.split()[0] in WORDS[1:4]) for t in texts]})
    tokens = reviews.map(tokenize).remove_columns("text")
    torch.manual_seed(0)
    result = train(Head(), tokens, folder="runs/head", workers=1, batch=100, epochs=10, learning_rate=0.02)
    print("AUC", result.auc)
