"""Ten public architectures: each trained by `dovetail.runtime.train` with its defaults, and by plain PyTorch.

    python benchmarks/models.py [--samples 100000] [--only DLRM] [--threads 1] [--processes] [--thread-time]

Both sides have all cores of this machine, all samples in memory as tensors (ours as a `TensorDataset`), the same
batches in the same order, and Adagrad. Plain PyTorch is a loop over tensors that picks each batch by its numbers. Of
sparse and dense gradients of tables, and of the optimizer's usual and its fused form, it has what is fastest in a trial
of a few steps, model by model. Dovetail is one process, with what a run does beside: figures, a learnt read-ahead,
checkpoints. The sides take turns, three times with three seeds; speeds are medians, while they train. Dovetail must end
within the noise of PyTorch's seeds: three standard deviations, and one hundredth of the loss.

Threads that compute together meet many times a step: where others use the cores too, one waits for the other, and that
is what is measured. With `--threads 1` each side computes in one thread, which is steadier then; with `--thread-time`
a second is one of that thread's processor time: what it takes where Dovetail's readers have another core. With
`--processes`, Dovetail is one worker and one server instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from architectures import Architecture, architectures
from dovetail.data import Batch
from dovetail.data.order import Order
from dovetail.models import WholeModel
from dovetail.runtime import train

Clock = Callable[[], float]
BATCH, HELD_OUT, SEEDS, TRIAL_STEPS = 250, 8000, (0, 1, 2), 60
WARM_STEPS = 10
"""Steps of plain PyTorch that come before its clock runs, as Dovetail's starting does."""


@dataclass(frozen=True)
class Samples:
    """Samples that were made before anybody trains, as tensors: those that are read, by their names, and the labels."""

    inputs: dict[str, Tensor]
    labels: Tensor

    @classmethod
    def of(cls, batch: Batch) -> Samples:
        """Take the ids, one a slot, and the numbers of a batch, where it has any."""
        inputs = {"ids": batch.ids.view(batch.num_samples, -1), "dense": batch.dense}
        return cls({name: tensor for name, tensor in inputs.items() if tensor.numel()}, batch.labels)

    def dataset(self) -> TensorDataset:
        """Return them as users of PyTorch have them."""
        return TensorDataset(*self.inputs.values(), self.labels)


def main() -> int:
    """Print a line a model; return 1 where one ends elsewhere."""
    parser = argparse.ArgumentParser(description="Ten public architectures against plain PyTorch.")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--only", help="the name of one architecture")
    parser.add_argument("--processes", action="store_true", help="one worker and one server")
    parser.add_argument("--threads", type=int, help="that compute, of either side; absent: as each has by default")
    parser.add_argument(
        "--thread-time", action="store_true", help="processor time of the thread that trains, not the clock's"
    )
    given = parser.parse_args()
    clock = time.thread_time if given.thread_time else time.perf_counter
    if given.threads:
        torch.set_num_threads(given.threads)
    how = "one worker and one server" if given.processes else "one process"
    cores = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{given.samples:,} samples, batches of {BATCH}, Adagrad, {cores}; Dovetail: {how}\n")
    headings = (
        ("PyTorch, 3 seeds", 20),
        ("Dovetail", 9),
        ("within", 7),
        ("PyTorch/s", 10),
        ("Dovetail/s", 10),
        ("ratio", 6),
    )
    print(f"{'model':<20}", *(f"{heading:>{width}}" for heading, width in headings), "  PyTorch's best")
    ratios, elsewhere = {}, []
    for each in architectures():
        if given.only in (None, each.name):
            ratios[each.name], is_within = compare(each, given.samples, processes=given.processes, clock=clock)
            elsewhere += [] if is_within else [each.name]
    lowest = min(ratios, key=lambda name: ratios[name])
    print(f"\nend where PyTorch ends: {len(ratios) - len(elsewhere)} of {len(ratios)}", *elsewhere)
    print(f"lowest: {ratios[lowest]:.2f} ({lowest})")
    print(f"samples/s over plain PyTorch, geometric mean: {statistics.geometric_mean(ratios.values()):.2f}")
    return 1 if elsewhere else 0


def compare(each: Architecture, samples: int, *, processes: bool, clock: Clock) -> tuple[float, bool]:
    """Train by both; print a line; return the ratio of speeds, and whether both end in one place."""
    source = Samples.of(each.source.read(0, samples))
    held_out = each.source.read(samples, samples + HELD_OUT)
    is_sparse, is_fused = fastest(each, source, clock)
    theirs, ours = [], []
    for seed in SEEDS:
        theirs.append(by_pytorch(each, source, held_out, seed, clock, is_sparse=is_sparse, is_fused=is_fused))
        ours.append(by_dovetail(each, source, held_out, seed, clock, processes=processes))
    losses = [loss for loss, _ in theirs]
    mean, noise = statistics.mean(losses), statistics.stdev(losses)
    our_loss = ours[0][0]
    is_within = abs(our_loss - mean) <= 3 * noise + 0.01 * mean
    speed, our_speed = (statistics.median(speed for _, speed in side) for side in (theirs, ours))
    print(
        f"{each.name:<20} {mean:>11.4f} ± {noise:.4f} {our_loss:>9.4f} {'yes' if is_within else 'NO':>7} "
        f"{speed:>10,.0f} {our_speed:>10,.0f} {our_speed / speed:>6.2f}"
        f"  {'sparse' if is_sparse else 'dense'}{', fused' if is_fused else ''}",
        flush=True,
    )
    return our_speed / speed, is_within


def fastest(each: Architecture, source: Samples, clock: Clock) -> tuple[bool, bool]:
    """Return whether sparse gradients, and whether a fused optimizer, are fastest for plain PyTorch here."""
    speeds = {}
    for is_sparse, is_fused in product((True, False), (False, True)):
        if is_sparse and is_fused:
            continue  # PyTorch refuses it
        module = built(each, 0, is_sparse=is_sparse)
        begun_s, _ = loop(module, each, source, 0, clock, is_fused=is_fused, last_step=WARM_STEPS + TRIAL_STEPS)
        speeds[is_sparse, is_fused] = clock() - begun_s
    return min(speeds, key=lambda how: speeds[how])


def built(each: Architecture, seed: int, *, is_sparse: bool) -> nn.Module:
    """Return the model, with sparse or dense gradients of its tables."""
    torch.manual_seed(seed)
    module = each.build()
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = layer.sparse and is_sparse
    return module


def by_pytorch(
    each: Architecture,
    source: Samples,
    held_out: Batch,
    seed: int,
    clock: Clock,
    *,
    is_sparse: bool,
    is_fused: bool,
) -> tuple[float, float]:
    """Return the loss on held-out samples and the samples/s of a plain loop."""
    module = built(each, seed, is_sparse=is_sparse)
    begun_s, steps = loop(module, each, source, seed, clock, is_fused=is_fused)
    speed = (steps - WARM_STEPS) * BATCH / (clock() - begun_s)
    return held_out_loss(module, held_out), speed


def loop(
    module: nn.Module,
    each: Architecture,
    source: Samples,
    seed: int,
    clock: Clock,
    *,
    is_fused: bool,
    last_step: int | None = None,
) -> tuple[float, int]:
    """Train as plain PyTorch programs do; return when the clock began, and the steps."""
    optimizer = torch.optim.Adagrad(module.parameters(), lr=each.learning_rate, fused=is_fused or None)
    labels = source.labels
    tensors = [source.inputs[name] for name in WholeModel(module).reads_of()]
    order = Order(num_samples=len(labels), seed=seed, block_samples=512).sample_ids(0, len(labels))
    batches = torch.from_numpy(order).split(BATCH)[:last_step]
    begun_s = clock()
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        for step, chosen in enumerate(batches):
            if step == WARM_STEPS:
                begun_s = clock()
            optimizer.zero_grad()
            loss_of(module(*[tensor[chosen] for tensor in tensors]), labels[chosen]).backward()
            optimizer.step()
    return begun_s, len(batches)


BEGUN: list[float] = []
"""When steps of Dovetail began, by the thread's processor time."""


def note_thread_time(*_: object) -> None:
    """Note that a step begins."""
    BEGUN.append(time.thread_time())


def by_dovetail(
    each: Architecture, source: Samples, held_out: Batch, seed: int, clock: Clock, *, processes: bool
) -> tuple[float, float]:
    """Return the same of a run."""
    torch.manual_seed(seed)
    module = each.build()
    BEGUN.clear()
    if clock is time.thread_time:
        module.register_forward_pre_hook(note_thread_time)
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            module,
            source.dataset(),
            data_options={"names": list(source.inputs)},
            folder=Path(folder) / "run",
            workers=1 if processes else None,
            seed=seed,
            batch=BATCH,
            optimizer="adagrad",
            learning_rate=each.learning_rate,
        )
        speed = result.samples_per_s
        if BEGUN:  # what is prepared computes a little too
            steps = BEGUN[-(len(source.labels) // BATCH - WARM_STEPS) :]
            speed = (len(steps) - 1) * BATCH / (steps[-1] - steps[0])
        return held_out_loss(result.fill(each.build()), held_out), speed


def held_out_loss(module: nn.Module, batch: Batch) -> float:
    """Return the mean loss on samples that nobody trained on."""
    with torch.no_grad():
        return float(loss_of(WholeModel(module.eval()).predict(batch), batch.labels))


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Return PyTorch's own loss."""
    if scores.dim() == 2 and scores.shape[1] > 1:
        return nn.functional.cross_entropy(scores, labels.long())
    return nn.functional.binary_cross_entropy_with_logits(scores.reshape(-1), labels)


if __name__ == "__main__":
    sys.exit(main())
