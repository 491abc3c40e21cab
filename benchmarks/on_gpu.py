"""What `dovetail train` does on one GPU, typed as a user would type it, beside what one would write in plain PyTorch.

    python benchmarks/on_gpu.py            # one GPU with 40 GB or more, 16 cores

CTR-DNN, 26 slots x 1,000,000 rows x 16, 13 numbers, hidden 1024 x 3, batch 8192, Adagrad, products in tf32 on all
sides. Every side is a process of its own that has loaded nothing before, and reads the same Parquet file or has the
same samples in memory, shuffled anew each epoch. Speeds are those of steps, stock PyTorch's after three of them,
Dovetail's after the second in which its first step was; `seconds` of its summary, from opening tables to the last
checkpoint, and the whole process are printed beside. The ratios come last.

- stock: an `nn.Embedding` with sparse gradients, all in GPU memory, the samples there too.
- stock, file: the same from the Parquet file, by a PyArrow `IterableDataset` in 14 `DataLoader` processes.
- memory: `dovetail train` of a function that returns the samples; rows in 8 GB of the GPU, so all of them.
- tier: the same with room for 2 GB of rows in GPU memory and the rest in host memory.
- file, cached: `dovetail train` from the Parquet file, first without a cache, then with it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as arrow_parquet

SLOTS, NUMBERS, WIDTH, HIDDEN, BATCH, RATE = 26, 13, 16, 1024, 8192, 0.01
GROUP_SAMPLES, WINDOW_GROUPS, READERS = 1 << 16, 4, 14
SLOT_NAMES = [f"slot{number + 1}" for number in range(SLOTS)]
NUMBER_NAMES = [f"number{number + 1}" for number in range(NUMBERS)]


def write_samples(path: Path, samples: int, rows_per_slot: int) -> None:
    """Write samples whose ids are drawn log-uniformly, so that few come often, from ranges that slots have alone."""
    scatter = 2_654_435_761

    def ids(slot: int) -> Any:
        draw = np.random.default_rng([1, slot])
        ranks = np.exp(draw.random(samples, dtype=np.float32) * np.float32(np.log(rows_per_slot))).astype(np.int64) - 1
        return pa.array(((ranks * scatter) % rows_per_slot + slot * rows_per_slot).astype(np.int32))

    with ThreadPoolExecutor() as pool:
        columns = dict(zip(SLOT_NAMES, pool.map(ids, range(SLOTS)), strict=True))
    draw = np.random.default_rng(2)
    columns |= {name: pa.array(draw.random(samples, dtype=np.float32)) for name in NUMBER_NAMES}
    chance = 0.1 + 0.4 * (np.asarray(columns["slot1"]) % 7 == 0)
    label = pa.array((draw.random(samples) < chance).astype(np.int8))
    table = pa.table({"label": label, **columns})
    arrow_parquet.write_table(table, path, row_group_size=GROUP_SAMPLES, use_dictionary=False)


def arrays_of(path: str) -> tuple[Any, Any, Any]:
    """Return ids, numbers and labels of a file."""
    table = arrow_parquet.read_table(path)
    ids = np.stack([table[name].to_numpy() for name in SLOT_NAMES], axis=1)
    dense = np.stack([table[name].to_numpy() for name in NUMBER_NAMES], axis=1)
    return ids, dense, table["label"].to_numpy().astype(np.float32)


def in_memory(path: str) -> Any:
    """Return the samples of a file in memory, as data for `dovetail train`."""
    from dovetail.data import as_source

    return as_source(arrow_parquet.read_table(path), label="label", dense=NUMBER_NAMES, slots=SLOT_NAMES)


def stock_model(rows_per_slot: int) -> Any:
    """Return what trains on one batch that is on the GPU."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_float32_matmul_precision("high")
    table = nn.Embedding(SLOTS * rows_per_slot, WIDTH, sparse=True, device="cuda")
    nn.init.uniform_(table.weight, -1 / 12, 1 / 12)
    sizes, parts = [SLOTS * WIDTH + NUMBERS, HIDDEN, HIDDEN, HIDDEN], []
    for before, after in itertools.pairwise(sizes):
        parts += [nn.Linear(before, after), nn.ReLU()]
    layers = nn.Sequential(*parts, nn.Linear(HIDDEN, 2)).cuda()
    optimizers = [
        torch.optim.Adagrad(layers.parameters(), lr=RATE, foreach=True),
        torch.optim.Adagrad(table.parameters(), lr=RATE),
    ]

    def step(ids: Any, dense: Any, labels: Any) -> None:
        rows = table(ids).flatten(1)
        scores = layers(torch.cat([rows, dense], dim=1))
        functional.cross_entropy(scores, labels.long()).backward()
        for optimizer in optimizers:
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def stock(path: str, rows_per_slot: int, epochs: int) -> float:
    """Return the seconds in which stock PyTorch trains, the samples on the GPU."""
    import torch

    ids, dense, labels = (torch.from_numpy(each).cuda() for each in arrays_of(path))
    step = stock_model(rows_per_slot)
    for _ in range(3):
        step(ids[:BATCH], dense[:BATCH], labels[:BATCH])
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), device="cuda").split(BATCH):
            step(ids[rows], dense[rows], labels[rows])
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def stock_file(path: str, rows_per_slot: int, epochs: int) -> float:
    """Return the seconds in which stock PyTorch trains from the file."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class RowGroups(IterableDataset):  # type: ignore[type-arg]
        """Row groups at random, several open at once, rows shuffled over them."""

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            mine, of = (0, 1) if info is None else (info.id, info.num_workers)
            file = arrow_parquet.ParquetFile(path)
            draw = np.random.default_rng(0)
            groups = draw.permutation(file.num_row_groups)[mine::of]
            for first in range(0, len(groups), WINDOW_GROUPS):
                table = file.read_row_groups(groups[first : first + WINDOW_GROUPS].tolist(), use_threads=False)
                ids = np.stack([table[name].to_numpy() for name in SLOT_NAMES], axis=1)
                dense = np.stack([table[name].to_numpy() for name in NUMBER_NAMES], axis=1)
                labels = table["label"].to_numpy().astype(np.float32)
                order = draw.permutation(len(labels))
                for begin in range(0, len(order), BATCH):
                    rows = order[begin : begin + BATCH]
                    yield torch.from_numpy(ids[rows]), torch.from_numpy(dense[rows]), torch.from_numpy(labels[rows])

    step = stock_model(rows_per_slot)
    begin_s = time.perf_counter()
    loader = DataLoader(RowGroups(), batch_size=None, num_workers=READERS, pin_memory=True, prefetch_factor=4)
    for _ in range(epochs):
        for batch in loader:
            step(*(each.cuda(non_blocking=True) for each in batch))
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def ours(name: str, path: str, folder: Path, given: argparse.Namespace) -> float:
    """Return samples/s of the steps of `dovetail train`; print them by second, and how long it took in all."""
    columns = {"label": "label", "dense": NUMBER_NAMES, "slots": SLOT_NAMES}
    of_file = {"name": "parquet", "options": {"path": path, "cache": str(folder / "cache"), **columns}}
    data = of_file if name in ("file", "cached") else {"name": "on_gpu:in_memory", "options": {"path": path}}
    num_rows = SLOTS * given.rows_per_slot
    run = {
        "model": {"name": "ctr-dnn", "options": {"num_rows": num_rows, "width": WIDTH, "hidden": [HIDDEN] * 3}},
        "data": data,
        "training": {"batch": BATCH, "epochs": given.epochs},
        "optimizer": {"name": "adagrad", "learning_rate": RATE},
        "table": {"place": "local", "device_bytes": (2 if name == "tier" else 8) << 30},
        "servers": {"host_bytes": 16 << 30},
        "worker": [{"precision": "tf32"}],
    }
    file, out = folder / f"{name}.json", folder / f"run-{name}"
    file.write_text(json.dumps(run))
    command = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]
    command += ["train", str(file), "--out", str(out), "--json"]
    own = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": own})
    curve = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    points = [(each["time_s"], each["samples"]) for each in curve]
    pairs = itertools.pairwise([(0.0, 0), *points])
    rates = [f"{(more - some) / (end_s - begin_s) / 1e6:.2f}" for (begin_s, some), (end_s, more) in pairs]
    print(f"{'':>12}M samples/s by second: {' '.join(rates)}", flush=True)
    summary = json.loads((out / "summary.json").read_text())
    print(f"{'':>12}tables opened, trained and kept: {summary['seconds']:.1f} s", flush=True)
    (begin_s, some), (end_s, more) = points[0], points[-2]  # the last line is written after the last checkpoint
    return float((more - some) / (end_s - begin_s))


def main() -> None:
    """Run each side in a process of its own, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8_000_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rows-per-slot", type=int, default=1_000_000)
    parser.add_argument("--sides", default="stock,stock-file,memory,tier,file,cached")
    parser.add_argument("--folder", type=Path, help="where the file lies or will lie; absent: one that goes again")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        of_stock = stock if given.only == "stock" else stock_file
        print(of_stock(str(given.folder / "samples.parquet"), given.rows_per_slot, given.epochs))
        return
    with tempfile.TemporaryDirectory(prefix="dovetail-gpu-") as drawn:
        folder = given.folder or Path(drawn)
        path, rates = folder / "samples.parquet", {}
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_samples(path, given.samples, given.rows_per_slot)
        samples = given.epochs * arrow_parquet.ParquetFile(path).metadata.num_rows
        for side in given.sides.split(","):
            begin_s = time.perf_counter()
            if side.startswith("stock"):
                wishes = ["--only", side, "--folder", str(folder), "--epochs", str(given.epochs)]
                wishes += ["--rows-per-slot", str(given.rows_per_slot)]
                told = subprocess.run([sys.executable, __file__, *wishes], check=True, capture_output=True, text=True)
                rates[side] = samples / float(told.stdout.split()[-1])
            else:
                rates[side] = ours(side, str(path), folder, given)
            whole_s = time.perf_counter() - begin_s
            print(f"{side:>10}: {rates[side]:>12,.0f} samples/s; the whole process {whole_s:.1f} s", flush=True)
    for side, of in (("memory", "stock"), ("tier", "memory"), ("file", "memory"), ("cached", "memory"),
                     ("cached", "stock-file")):  # fmt: skip
        if side in rates and of in rates:
            print(f"{side} over {of}: {rates[side] / rates[of]:.3f}x")


if __name__ == "__main__":
    main()
