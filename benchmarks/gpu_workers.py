"""How fast workers on one GPU train a CTR-DNN whose rows lie on parameter servers, against stock PyTorch.

    python benchmarks/gpu_workers.py            # on a machine with a GPU and 16 cores

26 slots x 1,000,000 rows x 16, hidden 1024 x 3, batch 8192, Adagrad everywhere, the same samples in memory on both
sides. PyTorch keeps the table in host memory (sparse gradients, all cores) and the layers on the GPU; Dovetail has
servers on the CPU and workers that share the GPU, in sync (the step is PyTorch's) and async (each task is one batch).
Dense parameters are on the servers too (`ps`), or on the GPU, the same on all workers by a ring (`ring`). The ratios
come last.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

import numpy as np
import torch
from memory_source import MemorySource
from torch import nn
from torch.nn import functional

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer

NUM_SLOTS, ROWS_PER_SLOT, WIDTH, HIDDEN, BATCH, RATE = 26, 1_000_000, 16, 1024, 8192, 0.01
NUM_ROWS = NUM_SLOTS * ROWS_PER_SLOT
SIDES = [
    ("sync", "ps", 4, 1),
    ("sync", "ring", 4, 1),
    ("sync", "ring", 8, 1),
    ("sync", "ring", 8, 3),
    ("async", "ps", 4, 1),
    ("async", "ps", 4, 3),
]
"""Mode, where dense parameters are, servers, workers."""


def main() -> None:
    """Run both sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1 << 20)
    parser.add_argument("--seconds", type=float, default=12, help="measured, of each side")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_samples(data, arguments.samples)
        stock = stock_pytorch(data, arguments.seconds)
        print(f"stock PyTorch, table on the CPU and layers on the GPU: {stock:,.0f} samples/s", flush=True)
        for mode, dense, servers, workers in SIDES:
            rate = dovetail(data, Path(folder) / "run", mode, dense, servers, workers, arguments.seconds)
            told = f"{mode}, {dense}, {servers} server{'s' * (servers > 1)}, {workers} worker{'s' * (workers > 1)}"
            print(f"Dovetail {told}: {rate:,.0f} samples/s, {rate / stock:.2f}x", flush=True)


def make_samples(file: Path, num_samples: int) -> None:
    """Write the samples that both sides load."""
    from dovetail.data import Clicks

    source = Clicks(num_slots=NUM_SLOTS, rows_per_slot=ROWS_PER_SLOT, num_multi_valued=0)
    batch = source.read(0, num_samples)
    ids = batch.ids.numpy().reshape(num_samples, NUM_SLOTS)
    np.savez(file, ids=ids, dense=batch.dense.numpy(), labels=batch.labels.numpy().astype(np.int64))


def stock_pytorch(file: Path, seconds: float) -> float:
    """Return samples/s of one process of PyTorch: the median over windows of a second after a warm-up."""
    with np.load(file) as arrays:
        ids, dense, labels = (torch.from_numpy(arrays[name]) for name in ("ids", "dense", "labels"))
    table = nn.Embedding(NUM_ROWS, WIDTH, sparse=True)
    nn.init.uniform_(table.weight, -1 / 12, 1 / 12)
    sizes = [NUM_SLOTS * WIDTH + dense.shape[1], HIDDEN, HIDDEN, HIDDEN]
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    layers = nn.Sequential(*parts, nn.Linear(HIDDEN, 2)).cuda()
    optimizers = [
        torch.optim.Adagrad(layers.parameters(), lr=RATE, fused=False),
        torch.optim.Adagrad(table.parameters(), lr=RATE),
    ]
    rates, position, begun = [], 0, time.perf_counter()
    while time.perf_counter() - begun < 5 + seconds:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < 1.0:
            part = slice(position, position + BATCH)
            rows = table(ids[part]).flatten(1).cuda(non_blocking=True)
            scores = layers(torch.cat([rows, dense[part].cuda(non_blocking=True)], dim=1))
            functional.cross_entropy(scores, labels[part].cuda(non_blocking=True)).backward()
            for optimizer in optimizers:
                with torch.sparse.check_sparse_tensor_invariants(enable=False):
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            done += BATCH
            position = (position + BATCH) % (len(ids) - BATCH)
        torch.cuda.synchronize()
        if start - begun > 5:
            rates.append(done / (time.perf_counter() - start))
    return statistics.median(rates)


def dovetail(file: Path, folder: Path, mode: str, dense: str, servers: int, workers: int, seconds: float) -> float:
    """Return samples/s of a run, from when every row has been seen once."""
    shutil.rmtree(folder, ignore_errors=True)
    source = MemorySource(file)
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}),
        data=RunData(shuffle=False),
        training=RunTraining(batch=BATCH, epochs=1_000_000, mode=mode, dense=dense, micro_batch=BATCH),
        optimizer=RunOptimizer(name="adagrad", learning_rate=RATE),
        servers=RunServers(count=servers, host_bytes=8 << 30),
        workers=[RunWorker(name="gpu", count=workers, threads=2, device="cuda")],
    )
    prepare(run, folder, source=source)
    with LocalRun(folder, source=source) as running:
        while running.report is None or running.report.samples < source.num_samples:
            running.look()
        start, first = time.perf_counter(), running.report.samples
        while time.perf_counter() - start < seconds:
            running.look()
        return (running.report.samples - first) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
