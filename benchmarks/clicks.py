"""How fast `clicks` makes samples beside how fast training uses them up, and its skew beside that of real traffic.

    DOVETAIL_DATA=... python benchmarks/clicks.py                          # one core
    python benchmarks/clicks.py --device cuda --batch 4096 --readers 8     # training on a GPU, 8 generating threads

Generator and loader are in rows per second of processor time of one core (other work on the machine does not count),
best of several; so is training on the CPU, with one thread. Training on a GPU is in rows per second of wall time. The
model is CTR-DNN at its public size with Adam. Without DOVETAIL_DATA the real histogram is left out. The last line is
the ratio of the generator's speed to that of training.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import torch
from numpy.typing import NDArray

from dovetail.data import Clicks, Loader
from dovetail.data.clicks.popularity import MEAN_TABLE_LOOKUPS
from dovetail.data.clicks.source import FAMILIES
from dovetail.models import load_model, make_optimizer, train_step

REAL_ROWS_PER_TABLE = 128_435_723 / 856
NUM_BINS = 17


def best_rate(work: Callable[[], int], clock: Callable[[], float], *, repeats: int = 5) -> float:
    """Return the most rows a second over several runs, the first of which does not count."""
    rates = []
    for _ in range(repeats + 1):
        start = clock()
        rows = work()
        rates.append(rows / (clock() - start))
    return max(rates[1:])


def generator_rate(source: Clicks, block: int = 16_384) -> float:
    """Return rows per second of one core for ranges of `block` samples."""

    def work() -> int:
        for first in range(0, 8 * block, block):
            source.read(first, first + block)
        return 8 * block

    return best_rate(work, time.process_time)


def loader_rate(source: Clicks, batch_size: int) -> float:
    """Return rows per second of one core for shuffled batches, the reading thread's time included."""
    return best_rate(
        lambda: sum(batch.num_samples for batch in Loader(source, batch_size=batch_size, stop=131_072, pin=False)),
        time.process_time,
        repeats=3,
    )


def loader_wall_rate(source: Clicks, batch_size: int, readers: int) -> float:
    """Return rows per second of wall time for batches in the data's own order, made by several threads."""
    loader = {"batch_size": batch_size, "stop": readers * 262_144, "shuffle": False, "readers": readers}
    return best_rate(
        lambda: sum(batch.num_samples for batch in Loader(source, prefetch=2 * readers, pin=False, **loader)),
        time.perf_counter,
        repeats=3,
    )


def training_rate(source: Clicks, batch_size: int, device: str, num_steps: int) -> float:
    """Return rows per second of CTR-DNN steps over batches that are ready."""
    graph = load_model("ctr-dnn", schema=source.schema).to(device)
    optimizer = make_optimizer(graph, "adam", 1e-4)
    batches = [source.read(k * batch_size, (k + 1) * batch_size).to(device) for k in range(8)]

    def work() -> int:
        for step in range(num_steps):
            train_step(graph, batches[step % 8], optimizer)
        if device == "cuda":
            torch.cuda.synchronize()
        return num_steps * batch_size

    return best_rate(work, time.perf_counter if device == "cuda" else time.process_time, repeats=3)


def touch_histograms(ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the shares of rows and of look-ups by how often a row is touched, and the number of distinct rows."""
    _, touches = np.unique(ids, return_counts=True)
    edges = np.array([0.5, *(2.0**k + 0.5 for k in range(16)), np.inf])
    rows = np.histogram(touches, edges)[0] / touches.size
    lookups = np.histogram(touches, edges, weights=touches)[0] / touches.sum()
    return rows, lookups, int(touches.size)


def real_histograms(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the same shares of the published traffic: 887 million look-ups in 856 tables."""
    text = (folder / "locality" / "dlrm_2021.txt").read_text().split("fbgemm_t856_bs65536_0.pt")[0]
    shares = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("(")]
    return np.array(shares[:NUM_BINS]), np.array(shares[NUM_BINS : 2 * NUM_BINS])


def print_histograms(seed: int) -> None:
    """Print both histograms of one generated table beside the real ones."""
    source = Clicks(num_slots=1, num_multi_valued=0, num_dense=0, seed=seed)
    rows, lookups, distinct = touch_histograms(source.read(0, MEAN_TABLE_LOOKUPS).ids.numpy())
    folder = os.environ.get("DOVETAIL_DATA")
    nothing = np.full(NUM_BINS, np.nan)
    real_rows, real_lookups = real_histograms(Path(folder)) if folder else (nothing, nothing)
    print(f"\n{MEAN_TABLE_LOOKUPS:,} look-ups in one table (the mean of the real 856)")
    print(f"distinct rows: {distinct:,}, real {REAL_ROWS_PER_TABLE:,.0f}")
    print(f"{'touched':>14} {'rows':>7} {'real':>7}   {'look-ups':>8} {'real':>7}")
    for bin_number in range(NUM_BINS):
        low = 0 if bin_number == 0 else 2 ** (bin_number - 1)
        label = f"{low + 1}..{2**bin_number}" if bin_number < NUM_BINS - 1 else f"over {low}"
        print(
            f"{label:>14} {rows[bin_number]:>7.3f} {real_rows[bin_number]:>7.3f}   "
            f"{lookups[bin_number]:>8.3f} {real_lookups[bin_number]:>7.3f}"
        )
    if folder:
        of_rows, of_lookups = abs(rows - real_rows).max(), abs(lookups - real_lookups).max()
        print(f"largest difference: {of_rows:.3f} of rows, {of_lookups:.3f} of look-ups")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--readers", type=int, default=1, help="threads that make samples while a GPU trains")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else "one core"
    print(f"{'truth':>12} {'rows/s of one core':>20} {'best AUC':>10}")
    rates = {}
    for truth in FAMILIES:
        source = Clicks(truth=truth, seed=arguments.seed)
        rates[truth] = generator_rate(source)
        print(f"{truth:>12} {rates[truth]:>20,.0f} {source.best_auc():>10.4f}")
    source = Clicks(seed=arguments.seed)
    print(f"shuffled batches of {arguments.batch}: {loader_rate(source, arguments.batch):,.0f} rows/s of one core")
    training = training_rate(source, arguments.batch, arguments.device, arguments.steps)
    print(f"CTR-DNN training, batches of {arguments.batch}, {where}: {training:,.0f} rows/s")
    generator = rates["deep"]
    if arguments.readers > 1:
        generator = loader_wall_rate(source, arguments.batch, arguments.readers)
        print(f"generator, {arguments.readers} threads: {generator:,.0f} rows/s")
    print_histograms(arguments.seed)
    print(f"\ngenerator over training: {generator / training:.1f}x")


if __name__ == "__main__":
    main()
