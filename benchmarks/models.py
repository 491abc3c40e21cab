"""Ten public architectures: each trained by `dovetail.runtime.train`, and by plain PyTorch with three seeds.

    python benchmarks/models.py [--samples 40000] [--workers 1] [--only DLRM]

Both sides see the same samples in the same order with Adagrad, and are judged on the same samples beyond them. Dovetail
must end within the noise of the three seeds: three standard deviations, and one hundredth of the loss. Its dense
parameters begin as those of seed 0, so models without tables on servers end near seed 0. Samples/s are
those of one thread and of `--workers` workers of one thread, both while they train, reading included.
"""

from __future__ import annotations

import argparse
import os

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from architectures import Architecture, architectures
from dovetail.data import Batch, Loader
from dovetail.models import WholeModel
from dovetail.runtime import train

BATCH, HELD_OUT, SEEDS = 250, 8000, (0, 1, 2)


def main() -> int:
    """Print a line a model; return 1 where one ends elsewhere."""
    parser = argparse.ArgumentParser(description="Ten public architectures against plain PyTorch.")
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", help="the name of one architecture")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{given.samples:,} samples, batches of {BATCH}, Adagrad, {given.workers} worker(s)\n")
    headings = (
        ("PyTorch, 3 seeds", 20),
        ("seed 0", 8),
        ("Dovetail", 9),
        ("within", 7),
        ("PyTorch/s", 10),
        ("Dovetail/s", 10),
    )
    print(f"{'model':<20}", *(f"{heading:>{width}}" for heading, width in headings))
    ratios, elsewhere = [], []
    for each in architectures():
        if given.only in (None, each.name):
            ratio, is_within = compare(each, given.samples, given.workers)
            ratios.append(ratio)
            elsewhere += [] if is_within else [each.name]
    print(f"\nend where PyTorch ends: {len(ratios) - len(elsewhere)} of {len(ratios)}", *elsewhere)
    print(f"samples/s over plain PyTorch, geometric mean: {statistics.geometric_mean(ratios):.2f}")
    return 1 if elsewhere else 0


def compare(each: Architecture, samples: int, workers: int) -> tuple[float, bool]:
    """Train by both; print a line; return the ratio of speeds, and whether both end in one place."""
    losses, speeds = zip(*(by_pytorch(each, samples, seed) for seed in SEEDS), strict=True)
    mean, noise = statistics.mean(losses), statistics.stdev(losses)
    ours, our_speed = by_dovetail(each, samples, workers)
    is_within = abs(ours - mean) <= 3 * noise + 0.01 * mean
    speed = statistics.median(speeds)
    print(
        f"{each.name:<20} {mean:>11.4f} ± {noise:.4f} {losses[0]:>8.4f} {ours:>9.4f} {'yes' if is_within else 'NO':>7} "
        f"{speed:>10,.0f} {our_speed:>10,.0f}",
        flush=True,
    )
    return our_speed / speed, is_within


def by_pytorch(each: Architecture, samples: int, seed: int) -> tuple[float, float]:
    """Return the loss on held-out samples and the samples/s of a plain loop."""
    torch.manual_seed(seed)
    module = each.build()
    model = WholeModel(module)
    optimizer = torch.optim.Adagrad(module.parameters(), lr=each.learning_rate)
    loader = Loader(
        each.source, batch_size=BATCH, seed=seed, num_samples=samples, prefetch=0, pin=False, block_samples=512
    )
    begun_s = time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        _loss(model.predict(batch), batch).backward()
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            optimizer.step()
    seconds = time.perf_counter() - begun_s
    return held_out_loss(module, each, samples), samples / seconds


def by_dovetail(each: Architecture, samples: int, workers: int) -> tuple[float, float]:
    """Return the same of a run over servers and workers."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            each.build(),
            each.source,
            folder=Path(folder) / "run",
            workers=workers,
            samples=samples,
            batch=BATCH,
            optimizer="adagrad",
            learning_rate=each.learning_rate,
        )
        return held_out_loss(result.fill(each.build()), each, samples), result.samples_per_s


def held_out_loss(module: nn.Module, each: Architecture, samples: int) -> float:
    """Return the mean loss on samples that nobody trained on."""
    batch = each.source.read(samples, samples + HELD_OUT)
    with torch.no_grad():
        return float(_loss(WholeModel(module.eval()).predict(batch), batch))


def _loss(scores: Tensor, batch: Batch) -> Tensor:
    """Return PyTorch's own loss."""
    if scores.dim() == 2 and scores.shape[1] > 1:
        return nn.functional.cross_entropy(scores, batch.labels.long())
    return nn.functional.binary_cross_entropy_with_logits(scores.reshape(-1), batch.labels)


if __name__ == "__main__":
    sys.exit(main())
