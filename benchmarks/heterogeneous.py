"""CPUs and a GPU in one pipeline, against stock PyTorch on the same machine.

    python benchmarks/heterogeneous.py                     # on a machine with a GPU and 16 cores
    python benchmarks/heterogeneous.py --model 2emb

CTR-DNN (26 slots x 8,000,000 rows x 16, hidden 1024 x 3, batch 8192), Adagrad everywhere, the same samples in memory on
all sides, matrix products in TF32 on the GPU on all sides. Stock PyTorch: all on the CPUs; tables on the CPUs and the
layers on the GPU (hybrid); all on the GPU. Dovetail: look-ups on CPU workers, layers on the GPU, rows on servers
in host memory, none of them cached on the GPU, in `sync`: every step is PyTorch's. The ratios come last.
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

from dovetail.data import Clicks
from dovetail.models.embedding import rows_elsewhere
from dovetail.models.load import load_model
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.prepare import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_optimizer import RunOptimizer
from dovetail.spec.run_stage import RunStage

NUM_SLOTS, ROWS_PER_SLOT, WIDTH, HIDDEN, BATCH, RATE = 26, 8_000_000, 16, 1024, 8192, 0.01
NUM_ROWS = NUM_SLOTS * ROWS_PER_SLOT
LOOK_UPS = {"ctr-dnn": 0, "2emb": 0}
HOST_BYTES = 48 << 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The last layer of the first stage: the look-ups."""


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(LOOK_UPS), default="ctr-dnn")
    parser.add_argument("--samples", type=int, default=1 << 20)
    parser.add_argument("--seconds", type=float, default=10, help="measured, of each side")
    parser.add_argument("--sides", default="cpu,hybrid,gpu", help="of PyTorch")
    parser.add_argument("--layouts", default="4x4,6x4,8x4", help="of Dovetail: readers x servers, ...")
    parser.add_argument("--micro", type=int, default=2048)
    parser.add_argument("--activations", default="float32")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_samples(data, arguments.samples)
        rates = {side: stock(data, side, arguments.seconds) for side in sides(arguments.sides)}
        best = 0.0
        for layout in sides(arguments.layouts):
            readers, servers = map(int, layout.split("x"))
            run = planned(arguments.model, readers, servers, arguments.micro, arguments.activations)
            rate = dovetail(data, Path(folder) / "run", run, arguments.seconds)
            print(f"Dovetail, {readers} readers, {servers} servers, 1 GPU: {rate:,.0f} samples/s", flush=True)
            best = max(best, rate)
        for side, rate in rates.items():
            print(f"{best / rate:.2f}x {side}")


def sides(text: str) -> list[str]:
    """Return what is separated by commas."""
    return [part for part in text.split(",") if part]


def make_samples(file: Path, num_samples: int) -> None:
    """Write the samples that all sides load."""
    source = Clicks(num_slots=NUM_SLOTS, rows_per_slot=ROWS_PER_SLOT, num_multi_valued=0)
    batch = source.read(0, num_samples)
    ids = batch.ids.numpy().reshape(num_samples, NUM_SLOTS)
    np.savez(file, ids=ids, dense=batch.dense.numpy(), labels=batch.labels.numpy().astype(np.int64))
    unique = [len(np.unique(ids[first : first + BATCH])) for first in range(0, 10 * BATCH, BATCH)]
    print(f"{num_samples:,} samples, {statistics.mean(unique):,.0f} distinct ids a batch", flush=True)


class Layers(nn.Module):
    """What comes after the look-ups."""

    def __init__(self, num_inputs: int) -> None:
        """Make the layers."""
        super().__init__()
        sizes = [num_inputs, HIDDEN, HIDDEN, HIDDEN]
        parts: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            parts += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*parts, nn.Linear(HIDDEN, 2))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        scores: torch.Tensor = self.layers(torch.cat(inputs, dim=1))
        return scores


def stock(file: Path, side: str, seconds: float) -> float:
    """Return samples/s of one process of PyTorch: the median over windows of a second after a warm-up."""
    with np.load(file) as arrays:
        ids, dense, labels = (torch.from_numpy(arrays[name]) for name in ("ids", "dense", "labels"))
    tables_on = torch.device("cuda" if side == "gpu" else "cpu")
    layers_on = torch.device("cpu" if side == "cpu" else "cuda")
    table = nn.Embedding(
        NUM_ROWS, WIDTH, sparse=True, device=tables_on, _weight=torch.zeros(NUM_ROWS, WIDTH, device=tables_on)
    )
    with torch.no_grad():  # whole pages are written, so that none is read before it is there
        table.weight.uniform_(-1 / 12, 1 / 12) if side == "gpu" else table.weight.fill_(1 / 24)
    layers = Layers(NUM_SLOTS * WIDTH + dense.shape[1]).to(layers_on)
    optimizers = [torch.optim.Adagrad(layers.parameters(), lr=RATE), torch.optim.Adagrad(table.parameters(), lr=RATE)]
    rates, position, begun, warm_s = [], 0, time.perf_counter(), 5
    while time.perf_counter() - begun < warm_s + seconds:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < 1.0:
            part = slice(position, position + BATCH)
            rows = table(ids[part].to(tables_on)).flatten(1).to(layers_on, non_blocking=True)
            scores = layers(rows, dense[part].to(layers_on, non_blocking=True))
            functional.cross_entropy(scores, labels[part].to(layers_on, non_blocking=True)).backward()
            for optimizer in optimizers:
                with torch.sparse.check_sparse_tensor_invariants(enable=False):
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            done += BATCH
            position = (position + BATCH) % (len(ids) - BATCH)
        if side != "cpu":
            torch.cuda.synchronize()
        if start - begun > warm_s:
            rates.append(done / (time.perf_counter() - start))
    rate = statistics.median(rates)
    print(f"stock PyTorch, {side}: {rate:,.0f} samples/s", flush=True)
    return rate


def planned(model: str, readers: int, servers: int, micro_batch: int, activations: str) -> Run:
    """Return the run: look-ups on so many CPU workers, the rest on the GPU."""
    options = {"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}
    schema = Clicks(num_slots=NUM_SLOTS, rows_per_slot=ROWS_PER_SLOT, num_multi_valued=0).schema
    with rows_elsewhere():
        num_layers = len(load_model(model, schema=schema, **options))
    last = LOOK_UPS[model]
    return Run(
        model=RunModel(name=model, options=options),
        data=RunData(shuffle=False),
        training=RunTraining(
            batch=BATCH, epochs=1_000_000, dense="ring", micro_batch=micro_batch, activations=activations
        ),
        optimizer=RunOptimizer(name="adagrad", learning_rate=RATE),
        servers=RunServers(count=servers, host_bytes=HOST_BYTES // servers),
        stages=[
            RunStage(first_layer=0, last_layer=last, resource="cpu"),
            RunStage(first_layer=last + 1, last_layer=num_layers - 1, resource="gpu"),
        ],
        workers=[
            RunWorker(name="reader", count=readers),
            RunWorker(name="layers", threads=2, device=DEVICE, stage=1, precision="tf32"),
        ],
    )


def dovetail(file: Path, folder: Path, run: Run, seconds: float) -> float:
    """Return samples/s of a run, from when every row has been seen once."""
    shutil.rmtree(folder, ignore_errors=True)
    source = MemorySource(file)
    prepare(run, folder, source=source)
    with LocalRun(folder, source=source) as running:
        while running.report is None or running.report.samples < source.num_samples:
            look(running)
        start, first = time.perf_counter(), running.report.samples
        while time.perf_counter() - start < seconds:
            look(running)
        return (running.report.samples - first) / (time.perf_counter() - start)


def look(running: LocalRun) -> None:
    """See how a run goes; one that failed ends the comparison."""
    running.look()
    if running.report is not None and running.report.error:
        raise SystemExit(f"error: {running.report.error}")


if __name__ == "__main__":
    main()
