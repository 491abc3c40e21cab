"""Small real data for tests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch

from dovetail.data import Batch


def make_batch(bags: list[list[list[int]]], *, first: int = 0) -> Batch:
    """Return one sample for each list of bags; its one number is its position, its label that modulo 2."""
    flat = [bag for sample in bags for bag in sample]
    ends = torch.tensor([0, *(len(bag) for bag in flat)]).cumsum(0)
    count = len(bags)
    return Batch(
        sample_ids=torch.arange(first, first + count),
        dense=torch.arange(count, dtype=torch.float32).reshape(count, 1),
        ids=torch.tensor([i for bag in flat for i in bag], dtype=torch.int64),
        offsets=ends,
        labels=torch.arange(count, dtype=torch.float32) % 2,
    )


def bags_of(batch: Batch) -> list[list[list[int]]]:
    """Return the ids of every sample and slot as lists."""
    ends = batch.offsets.tolist()
    flat = [batch.ids[begin:end].tolist() for begin, end in pairwise(ends)]
    slots = batch.num_slots
    return [flat[i * slots : (i + 1) * slots] for i in range(batch.num_samples)]


def criteo_line(label: int = 0, number: int = 1) -> str:
    """Return a line of the public format."""
    integers = [str(number + i) for i in range(13)]
    categories = [f"{(number * 31 + i) & 0xFFFFFFFF:08x}" for i in range(26)]
    return "\t".join([str(label), *integers, *categories])


def write_criteo(path: Path, count: int = 10) -> Path:
    """Write so many good lines."""
    path.write_text("".join(criteo_line(i % 2, i) + "\n" for i in range(count)))
    return path


def same(a: Batch, b: Batch) -> bool:
    """Say whether two batches are equal to the bit."""
    return all(torch.equal(x, y) for x, y in zip(a.tensors(), b.tensors(), strict=True))
