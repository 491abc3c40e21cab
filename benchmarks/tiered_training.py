"""The kernels and tiers of one GPU's table, larger than the memory it may use, in steps that are driven by hand.

    python benchmarks/tiered_training.py            # one GPU with 80 GB or more, 16 cores, 100 GB of memory

What a user gets, `dovetail train` and `dovetail.train` with their data, `on_gpu.py` measures.

26 slots x 8,000,000 rows x 16 (208 M rows), Zipf 1.15, hidden 1024 x 3, batch 8192, Adagrad, batches that never repeat.
In one run: stock PyTorch with the table in host memory and in GPU memory; this table with all rows in GPU memory, with
2 GB of GPU memory over 24 GB of host memory and over 4 GB and disk, and with budgets for 1% to 25% of the rows. A rate
is that of the last batches, when the device tier is full and rows go up and down. The ratios come last.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from stock_tables import StockModel, dense_layers, run_stock

from dovetail.embedding import Adagrad, FusedStep, Table
from dovetail.embedding.tiers.device.budget import slot_bytes
from dovetail.embedding.tiers.device.prefetcher import Moved
from dovetail.embedding.tiers.hit_ratio import hit_ratio
from dovetail.units import format_bytes
from zipf_keys import Batches, make_batches, rows_by_count

SLOTS, WIDTH, HIDDEN, RATE = 26, 16, [1024, 1024, 1024], 0.01
ROW_BYTES, SLOT_BYTES = 2 * WIDTH * 4, slot_bytes(2 * WIDTH)
NUM_EVALUATED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run of the table came to."""

    samples_per_s: float
    auc: float
    moved: Moved
    waited_s: float
    seconds: float
    device_rows: int


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2400)
    parser.add_argument("--warm", type=int, default=1800, help="batches before the clock starts")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--rows-per-slot", type=int, default=8_000_000)
    parser.add_argument("--depth", type=int, default=16, help="batches of look-ahead")
    parser.add_argument("--precision", choices=["tf32", "bf16", "float32"], default="tf32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sides", default="stock-cpu,stock-gpu,all,24GB,4GB,curve")
    arguments = parser.parse_args()
    sides = arguments.sides.split(",")
    torch.backends.cuda.matmul.allow_tf32 = arguments.precision == "tf32"
    begun_s = time.perf_counter()
    batches = make_batches(
        arguments.batches + NUM_EVALUATED,
        *(arguments.batch, SLOTS, arguments.rows_per_slot),
        exponent=1.15,
        seed=0,
        threads=os.cpu_count() or 1,
    )
    say(f"{len(batches.keys)} batches of {arguments.batch} made in {time.perf_counter() - begun_s:.0f} s")
    begun_s = time.perf_counter()
    histogram = rows_by_count(batches, arguments.warm, SLOTS, arguments.rows_per_slot)
    say(f"{histogram.sum():,} rows are in the first {arguments.warm} ({time.perf_counter() - begun_s:.0f} s to count)")
    rates: dict[str, float] = {}
    for place in ("cpu", "gpu"):
        if f"stock-{place}" in sides:
            rates[f"stock-{place}"] = stock(arguments, batches, place)
            empty()
    whole = SLOTS * arguments.rows_per_slot
    settings: list[tuple[str, int, int]] = [("all", 20 << 30, 24), ("24GB", 2 << 30, 24), ("4GB", 2 << 30, 4)]
    settings += [(f"{percent}%", whole * percent // 100 * SLOT_BYTES, 24) for percent in (1, 2, 5, 10, 25)]
    for name, device_bytes, host_gb in settings:
        if name in sides or (name.endswith("%") and "curve" in sides):
            ran = tiered(arguments, batches, name, device_bytes, host_gb << 30)
            rates[name] = ran.samples_per_s
            foretold = hit_ratio(histogram, device_bytes // SLOT_BYTES)
            say(f"    hit ratio of distinct rows: {ran.moved.hit_ratio:.4f} measured, {foretold:.4f} foretold")
    say("")
    for name, rate in rates.items():
        bases = [base for base in ("stock-cpu", "stock-gpu", "all") if base in rates]
        ratios = "  ".join(f"{rate / rates[base]:.3f}x {base}" for base in bases)
        say(f"{name:>10}: {rate:>12,.0f} samples/s   {ratios}")


def stock(arguments: argparse.Namespace, batches: Batches, place: str) -> float:
    """Return samples/s of stock PyTorch, and print them."""
    on_gpu = place == "gpu"
    model = StockModel(
        SLOTS * arguments.rows_per_slot, WIDTH, SLOTS, HIDDEN, arguments.device if on_gpu else "cpu", RATE
    )
    count = min(len(batches.keys) - NUM_EVALUATED, arguments.batches if on_gpu else 25)
    rate = run_stock(model, batches, first=0, last=count, warm=min(200, count // 2) if on_gpu else 5)
    told = f"stock PyTorch, table in {'GPU' if on_gpu else 'host'} memory: {rate:,.0f} samples/s over {count} batches"
    with torch.no_grad():
        say(f"{told}, AUC {auc_of(batches, lambda keys: model.scores(torch.from_numpy(keys), arguments.batch)):.4f}")
    return rate


def tiered(arguments: argparse.Namespace, batches: Batches, name: str, device_bytes: int, host_bytes: int) -> Ran:
    """Train a table with a device tier, and print what came of it."""
    folder = Path(tempfile.mkdtemp(prefix="rows-"))
    # The more rows the index is made for, the fewer fit beside it: with 4 GB, some go to disk within the run.
    expected = min(120_000_000 if host_bytes < 8 << 30 else 60_000_000, SLOTS * arguments.rows_per_slot)
    try:
        with Table(
            width=WIDTH,
            optimizer=Adagrad(learning_rate=RATE),
            device=arguments.device,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            folder=folder,
            expected_rows=expected,
        ) as table:
            ran = train(arguments, batches, table)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    moved, count = ran.moved, max(1, ran.moved.num_batches)
    say(
        f"table {name}: {format_bytes(device_bytes)} on the device ({ran.device_rows:,} rows there), "
        f"{format_bytes(host_bytes)} of host memory: {ran.samples_per_s:,.0f} samples/s, AUC {ran.auc:.4f}\n"
        f"    a batch: {moved.num_looked_up / count:,.0f} distinct rows, {moved.num_missing / count:,.0f} missing "
        f"(hit ratio {moved.hit_ratio:.4f}; of look-ups {1 - moved.num_missing / count / batches.keys.shape[1]:.4f}), "
        f"{moved.num_promoted / count:,.0f} came up ({moved.num_from_disk / count:,.0f} from disk), "
        f"{moved.num_demoted / count:,.0f} went down: {format_bytes(moved.num_promoted / count * ROW_BYTES)} up, "
        f"{format_bytes(moved.num_demoted / count * ROW_BYTES)} down\n"
        f"    a step: {ran.seconds / count * 1e3:.3f} ms; planning thread {moved.planning_s / count * 1e3:.3f} ms "
        f"({moved.planning_waited_s / count * 1e3:.3f} of it waiting for the device; "
        f"{count / max(1, moved.num_rounds):.1f} batches at once), "
        f"moving thread {moved.moving_s / count * 1e3:.3f} ms ({moved.moving_waited_s / count * 1e3:.3f} waiting), "
        f"training thread waiting for a plan {ran.waited_s / count * 1e3:.3f} ms"
    )
    empty()
    return ran


def train(arguments: argparse.Namespace, batches: Batches, table: Table) -> Ran:
    """Train on all batches, and measure the last ones."""
    rows = table.on_device
    assert rows is not None
    samples, device = arguments.batch, arguments.device
    layers = dense_layers(SLOTS * WIDTH, HIDDEN, device)
    values = torch.nn.utils.parameters_to_vector(layers.parameters()).detach()
    gradients, squares = torch.zeros_like(values), torch.zeros_like(values)
    position = 0
    for parameter in layers.parameters():
        part = slice(position, position + parameter.numel())
        parameter.data = values[part].view(parameter.shape)
        parameter.grad = gradients[part].view(parameter.shape)
        position = part.stop
    half = arguments.precision == "bf16"

    def scores_of(vectors: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            return layers(vectors.view(samples, -1)).float()

    def loss_of(vectors: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(scores_of(vectors), labels)

    def update() -> None:
        with torch.no_grad():
            squares.addcmul_(gradients, gradients)
            values.addcdiv_(gradients, squares.sqrt().add_(1e-10), value=-RATE)
            gradients.zero_()

    step = FusedStep(rows, loss_of, update)
    for number in range(min(arguments.depth, arguments.batches)):
        rows.announce(batches.keys[number], batches.labels[number])
    before, waited_s, begun_s = rows.moved(), 0.0, time.perf_counter()
    for number in range(arguments.batches):
        if number == arguments.warm:
            synchronize(device)
            before, waited_s, begun_s = rows.moved(), step.waited_s, time.perf_counter()
        ahead = number + arguments.depth
        if ahead < arguments.batches:
            rows.announce(batches.keys[ahead], batches.labels[ahead])
        step()
    synchronize(device)
    seconds = time.perf_counter() - begun_s
    moved = rows.moved() - before
    with torch.no_grad():
        auc = auc_of(batches, lambda keys: scores_of(rows.look_up(keys, insert=False).values()))
    return Ran(
        samples_per_s=(arguments.batches - arguments.warm) * samples / seconds,
        auc=auc,
        moved=moved,
        waited_s=step.waited_s - waited_s,
        seconds=seconds,
        device_rows=rows.tier.num_rows,
    )


def auc_of(batches: Batches, scores_of: Callable[[NDArray[np.int64]], Tensor]) -> float:
    """Return the area under the ROC curve, the chance that a click ranks higher, over batches not trained on."""
    numbers = range(len(batches.keys) - NUM_EVALUATED, len(batches.keys))
    scores = np.concatenate([scores_of(batches.keys[number]).diff(dim=1)[:, 0].cpu().numpy() for number in numbers])
    clicked = batches.labels[numbers[0] :].reshape(-1)[np.argsort(scores, kind="stable")] > 0
    ranks = np.flatnonzero(clicked) + 1
    num_clicked, num_quiet = len(ranks), len(clicked) - len(ranks)
    return float((ranks.sum() - num_clicked * (num_clicked + 1) / 2) / (num_clicked * num_quiet))


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def empty() -> None:
    """Give memory back before the next side."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
