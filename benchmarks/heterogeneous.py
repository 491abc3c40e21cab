"""CPUs and a GPU in one pipeline, against stock PyTorch on the same machine.

    python benchmarks/heterogeneous.py                     # on a machine with a GPU and 16 cores
    python benchmarks/heterogeneous.py --model 2emb

CTR-DNN (26 slots x 8,000,000 rows x 16, hidden 1024 x 3, batch 8192), Adagrad everywhere, the same samples in memory on
all sides, matrix products in TF32 on the GPU on all sides. Stock PyTorch: all on the CPUs; tables on the CPUs and the
layers on the GPU (hybrid); all on the GPU. Dovetail: look-ups on CPU workers, layers on the GPU, rows on servers
in host memory, none of them cached on the GPU, in `sync`: every step is PyTorch's. Dollars are those of 16 cores, or
of the GPU with its share of a machine. The ratios come last.
"""

from __future__ import annotations

import argparse
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

from dovetail.data import Batch, Clicks
from dovetail.models.embedding import rows_elsewhere
from dovetail.models.load import load_model
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunCompression, RunOptimizer, RunStage

NUM_SLOTS, ROWS_PER_SLOT, WIDTH, HIDDEN, BATCH, RATE = 26, 8_000_000, 16, 1024, 8192, 0.01
NUM_ROWS = NUM_SLOTS * ROWS_PER_SLOT
SCHEMA = Clicks(num_slots=NUM_SLOTS, rows_per_slot=ROWS_PER_SLOT, num_multi_valued=0).schema
OPTIONS = {"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}
CPU_USD, GPU_USD = 0.714, 63.296 / 8
"""An hour on demand, by the catalogue: 16 cores (aws:c7i.4xlarge), and an eighth of a machine with eight H200, its
cores among it (aws:p5en.48xlarge)."""
HOST_BYTES = 48 << 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["ctr-dnn", "2emb"], default="ctr-dnn")
    parser.add_argument("--samples", type=int, default=1 << 20)
    parser.add_argument("--seconds", type=float, default=10, help="measured, of each side")
    parser.add_argument("--sides", default="cpu,hybrid,gpu", help="of PyTorch")
    parser.add_argument("--layouts", default="6x6,6x8", help="of Dovetail: readers x servers, ...")
    parser.add_argument("--micro", type=int, default=BATCH)
    parser.add_argument("--activations", type=int, default=32, help="bits of a number between stages")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_samples(data, arguments.samples)
        rates = {}
        for side in sides(arguments.sides):
            rates[side] = stock(data, arguments.model, side, arguments.seconds)
            say(f"stock PyTorch, {side}", rates[side], on_gpu=side != "cpu")
        best = 0.0
        for layout in sides(arguments.layouts):
            readers, servers = map(int, layout.split("x"))
            run = planned(arguments.model, readers, servers, arguments.micro, arguments.activations)
            rate = dovetail(data, Path(folder) / "run", run, arguments.seconds)
            say(f"Dovetail, {readers} readers, {servers} servers, 1 GPU", rate, on_gpu=True)
            best = max(best, rate)
        if torch.cuda.is_available():
            room = torch.cuda.get_device_properties(0).total_memory
            most = room // (2 * 4 * WIDTH)  # values and squares
            print(f"a table of more than {most / 1e6:,.0f} M rows does not fit the GPU alone")
        for side, rate in rates.items():
            print(f"{best / rate:.2f}x {side}")


def say(name: str, rate: float, *, on_gpu: bool) -> None:
    """Print a side's speed, and what a billion samples cost on what it uses."""
    usd = 1e9 / rate / 3600 * (GPU_USD if on_gpu else CPU_USD)
    print(f"{name}: {rate:,.0f} samples/s, {usd:.2f} USD a billion samples", flush=True)


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


class Stock:
    """A model of Dovetail's as plain PyTorch: its blocks in turn, tables and layers each on their device."""

    def __init__(self, model: str, *, tables_on: str, layers_on: str) -> None:
        """Build it; the large table has one value everywhere, which takes no time to draw."""
        with rows_elsewhere():
            self._graph = load_model(model, schema=SCHEMA, **OPTIONS)
        self._devices = []
        for block in self._graph.blocks:
            is_table = block.kind == "embedding"
            device = torch.device(tables_on if is_table else layers_on)
            if is_table:
                weight = torch.full((block.module.num_rows, WIDTH), 1 / 24, device=device)
                block.module.weight = nn.Parameter(weight)
            self._devices.append(device)
            block.module.to(device)
        tables = {id(block.module.weight) for block in self._graph.blocks if block.kind == "embedding"}
        parameters = list(self._graph.parameters())
        self._optimizers = [
            torch.optim.Adagrad([each for each in parameters if id(each) not in tables], lr=RATE),
            torch.optim.Adagrad([each for each in parameters if id(each) in tables], lr=RATE),
        ]

    def step(self, batch: Batch) -> None:
        """Train on a batch."""
        outputs: dict[str, torch.Tensor] = {}
        for block, device in zip(self._graph.blocks, self._devices, strict=True):
            inputs = [outputs[name] for name in block.after or ()]
            inputs += [getattr(batch, name) for name in block.reads if getattr(batch, name) is not None]
            outputs[block.name] = block.module(*(each.to(device, non_blocking=True) for each in inputs))
        (outputs[self._graph.blocks[-1].name] / batch.num_samples).backward()
        for optimizer in self._optimizers:
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def stock(file: Path, model: str, side: str, seconds: float) -> float:
    """Return samples/s of one process of PyTorch: the median over windows of a second after a warm-up."""
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    trained = Stock(model, tables_on=gpu if side == "gpu" else "cpu", layers_on="cpu" if side == "cpu" else gpu)
    source = MemorySource(file)
    rates, position, begun, warm_s = [], 0, time.perf_counter(), 5
    while time.perf_counter() - begun < warm_s + seconds:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < 1.0:
            trained.step(source.read(position, position + BATCH))
            done += BATCH
            position = (position + BATCH) % (source.num_samples - BATCH)
        if gpu == "cuda":
            torch.cuda.synchronize()
        if start - begun > warm_s:
            rates.append(done / (time.perf_counter() - start))
    return statistics.median(rates)


def planned(model: str, readers: int, servers: int, micro_batch: int, bits: int) -> Run:
    """Return the run: look-ups of the large table on so many CPU workers, the rest on the GPU."""
    with rows_elsewhere():
        num_layers = len(load_model(model, schema=SCHEMA, **OPTIONS))
    return Run(
        model=RunModel(name=model, options=OPTIONS),
        data=RunData(shuffle=False),
        training=RunTraining(batch=BATCH, epochs=1_000_000, dense="ring", micro_batch=micro_batch),
        compression=RunCompression(activations=bits),
        optimizer=RunOptimizer(name="adagrad", learning_rate=RATE),
        servers=RunServers(count=servers, host_bytes=HOST_BYTES // servers),
        stages=[
            RunStage(first_layer=0, last_layer=0, resource="cpu"),
            RunStage(first_layer=1, last_layer=num_layers - 1, resource="gpu"),
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
