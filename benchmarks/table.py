"""How fast an embedding table is, and how rarely it goes to disk.

    python benchmarks/table.py host                 # all rows in RAM, against a plain tensor; ratio last
    python benchmarks/table.py cold                 # a tenth of the rows in RAM, against LMDB and RocksDB
    python benchmarks/table.py confined             # the same where the page cache counts as RAM
    python benchmarks/table.py misses               # fetches, against LRU, LFU, Belady and a perfect-frequency oracle
    python benchmarks/table.py precision            # what bfloat16 and int8 rows on disk do to a loss
    python benchmarks/table.py large --gigabytes 5  # a table ten times its budget, RSS watched

`cold` and `confined` need `pip install lmdb rocksdict`, and `host` shows FBGEMM where `fbgemm-gpu-cpu` of the torch in
use (1.8.0 for 2.13) is installed, best in an environment of its own; what is not installed is left out. Skewed keys
follow the curve fitted to a public histogram of 887 M look-ups (`dovetail.data.clicks.popularity`), spread over all of
int64. A step is one look-up of a batch and one update with a gradient for every id; times are medians over steps after
a warm-up. One thread.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import os
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from dovetail.data.clicks.popularity import FITTED, row_shares
from dovetail.embedding import Adagrad, Table
from dovetail.embedding.row_optimizer import adagrad
from dovetail.embedding.tiers.disk.record import RecordLayout
from dovetail.units import format_bytes
from table_engines import ENGINES, GROUPS, Engine, can_confine, confine, forget_pages

torch.set_num_threads(1)
Keys = NDArray[np.int64]
Step = Callable[[Keys, NDArray[np.float32]], None]
BATCH_IDS = 26 * 1024
SPREAD = np.int64(0x9E3779B97F4A7C15 - (1 << 64))


def batches(kind: str, num_rows: int, num_batches: int, seed: int = 0) -> list[Keys]:
    """Return row numbers, uniform or skewed, for each batch."""
    random = np.random.default_rng(seed)
    if kind == "uniform":
        return [random.integers(0, num_rows, BATCH_IDS) for _ in range(num_batches)]
    edges = np.cumsum(row_shares(num_rows, FITTED))
    edges[-1] = 1.0
    order = random.permutation(num_rows)
    return [order[np.searchsorted(edges, random.random(BATCH_IDS))] for _ in range(num_batches)]


def as_keys(rows: Keys) -> Keys:
    """Return row numbers spread over int64."""
    with np.errstate(over="ignore"):
        return rows * SPREAD


def median_s(step: Step, ids: list[Keys], width: int, warm_up: int) -> float:
    """Return the median seconds of a step after the warm-up."""
    return wall_and_cpu_s(step, ids, width, warm_up)[0]


def wall_and_cpu_s(step: Step, ids: list[Keys], width: int, warm_up: int) -> tuple[float, float]:
    """Return the median seconds of a step after the warm-up: by the clock, and of a processor."""
    gradients = np.random.default_rng(1).normal(size=(BATCH_IDS, width)).astype(np.float32)
    seconds = []
    for number, batch in enumerate(ids):
        start = time.perf_counter(), time.thread_time()
        step(batch, gradients)
        if number >= warm_up:
            seconds.append((time.perf_counter() - start[0], time.thread_time() - start[1]))
    wall_s, cpu_s = np.median(seconds, axis=0).tolist()
    return wall_s, cpu_s


@njit(cache=True, nogil=True)
def sum_by_row(ids, gradients, stamps, places, stamp, unique, sums):  # type: ignore[no-untyped-def]
    """Sum the gradients of each row once; the rows are numbered, so no index is needed."""
    count = 0
    for i in range(len(ids)):
        row = ids[i]
        if stamps[row] != stamp:
            stamps[row] = stamp
            places[row] = count
            unique[count] = row
            sums[count] = gradients[i]
            count += 1
        else:
            sums[places[row]] += gradients[i]
    return count


def plain_tensor(num_rows: int, width: int) -> Step:
    """Return a step on a plain torch tensor with the same kernel: no index, no tiers; the limit."""
    values = torch.randn(num_rows, 2 * width).abs()
    rows = values.numpy()
    stamps, places = np.zeros(num_rows, dtype=np.int32), np.zeros(num_rows, dtype=np.int32)
    unique, sums = np.empty(BATCH_IDS, dtype=np.int32), np.empty((BATCH_IDS, width), dtype=np.float32)
    settings = Adagrad().settings()
    stamp = 0

    def step(ids: Keys, gradients: NDArray[np.float32]) -> None:
        nonlocal stamp
        stamp += 1
        torch.index_select(values[:, :width], 0, torch.from_numpy(ids))
        count = sum_by_row(ids, gradients, stamps, places, stamp, unique, sums)
        adagrad(rows, unique[:count], sums[:count], width, settings)

    return step


def torch_sparse(num_rows: int, width: int) -> Step:
    """Return a step of nn.Embedding(sparse=True) under torch.optim.Adagrad: what users have."""
    layer = torch.nn.Embedding(num_rows, width, sparse=True)
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.05)

    def step(ids: Keys, gradients: NDArray[np.float32]) -> None:
        layer(torch.from_numpy(ids)).backward(torch.from_numpy(gradients))
        optimizer.step()
        optimizer.zero_grad()

    return step


def fbgemm_step(num_rows: int, width: int) -> Step:
    """Return a step of FBGEMM's table for the CPU: one id a bag, its exact Adagrad."""
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    layer = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(num_rows, width, EmbeddingLocation.HOST, training.ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=0.05,
    )
    offsets = torch.arange(BATCH_IDS + 1)

    def step(ids: Keys, gradients: NDArray[np.float32]) -> None:
        layer(torch.from_numpy(ids), offsets).backward(torch.from_numpy(gradients))

    return step


def table_step(table: Table) -> Step:
    """Return a step of the table."""

    def step(ids: Keys, gradients: NDArray[np.float32]) -> None:
        keys = as_keys(ids)
        table.lookup(keys)
        table.update(keys, gradients)

    return step


def fill(table: Table, num_rows: int) -> None:
    """Make every row."""
    for start in range(0, num_rows, 8192):
        table.lookup(as_keys(np.arange(start, min(start + 8192, num_rows))))


def host(args: argparse.Namespace) -> float:
    """Compare with plain tensors, everything in RAM; return the worse ratio to the limit."""
    ratios = []
    print(f"host: {args.rows:,} rows of {args.width}, {BATCH_IDS} ids a batch, Adagrad; million ids/s")
    for kind in ("uniform", "skewed"):
        ids = batches(kind, args.rows, 40)
        with Table(width=args.width, host_bytes=4 << 30) as table:
            fill(table, args.rows)
            ours = median_s(table_step(table), ids, args.width, 10)
        limit = median_s(plain_tensor(args.rows, args.width), ids, args.width, 10)
        users = median_s(torch_sparse(args.rows, args.width), ids[:15], args.width, 5)
        ratios.append(limit / ours)
        rates = [BATCH_IDS / seconds / 1e6 for seconds in (ours, limit, users)]
        print(
            f"  {kind:8} table {rates[0]:.2f}, plain tensor, same kernel {rates[1]:.2f} (ratio {limit / ours:.2f}), "
            f"nn.Embedding + torch Adagrad {rates[2]:.2f} (ratio {users / ours:.1f})"
        )
        try:
            theirs = median_s(fbgemm_step(args.rows, args.width), ids, args.width, 10)
            print(f"  {kind:8} FBGEMM {BATCH_IDS / theirs / 1e6:.2f} (the table is {theirs / ours:.2f}x as fast)")
        except ImportError:
            print(f"  {kind:8} FBGEMM not installed")
    return min(ratios)


def budget_bytes(args: argparse.Namespace) -> int:
    """Return what a tenth of the rows and the index of all of them take."""
    return int(args.rows * (8 * args.width + 44) * 0.1) + int(args.rows / 0.8 * 1.5 * 19)


def cold_table(args: argparse.Namespace, folder: Path) -> Table:
    """Return a table of which a tenth lies in RAM."""
    table = Table(width=args.width, host_bytes=4 * budget_bytes(args), host_rows=args.rows // 10, folder=folder)
    fill(table, args.rows)
    return table


def filled(engine: Engine, args: argparse.Namespace) -> Engine:
    """Write every row into an engine."""
    gradients = np.ones((BATCH_IDS, args.width), dtype=np.float32)
    for start in range(0, args.rows, BATCH_IDS):
        engine.step(as_keys(np.arange(start, start + BATCH_IDS) % args.rows), gradients)
    return engine


def engine_step(engine: Engine, *, reads_again: bool) -> Step:
    """Return a step on an engine."""
    return lambda ids, gradients: engine.step(as_keys(ids), gradients, reads_again=reads_again)


def cold(args: argparse.Namespace) -> float:
    """Compare with key-value engines, a tenth of the rows in RAM, all taking turns; return the worse ratio to them."""
    budget = budget_bytes(args)
    print(
        f"cold: {args.rows:,} rows of {args.width}, skewed, {args.rows // 10:,} rows in RAM and an index: "
        f"{format_bytes(budget)}; the page cache is free for all; {args.rounds} rounds"
    )
    ids = batches("skewed", args.rows, 100 + 24 * args.rounds)
    folder = Path(tempfile.mkdtemp())
    engines: dict[str, Engine] = {}
    sides: dict[str, Step] = {}
    try:
        table = cold_table(args, folder / "table")
        sides["table"] = table_step(table)
        median_s(sides["table"], ids[:100], args.width, 0)
        for name, make in ENGINES.items():
            try:
                engines[name] = filled(make(folder / name, args.width, budget), args)
            except ImportError:
                print(f"  {name:24}not installed")
                continue
            sides[name] = engine_step(engines[name], reads_again=True)
            sides[f"{name}, rows kept"] = engine_step(engines[name], reads_again=False)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for number in range(args.rounds):
            part = ids[100 + 24 * number :]
            for name, step in sides.items():
                num_steps = 24 if name == "table" else 8
                seconds[name].append(wall_and_cpu_s(step, part[:num_steps], args.width, 2))
        stats = table.stats()
        table.close()
    finally:
        for engine in engines.values():
            engine.close()
        shutil.rmtree(folder, ignore_errors=True)
    return report(seconds, f"(RAM {format_bytes(stats.memory_bytes)}, files {format_bytes(stats.disk_bytes)})")


def report(seconds: dict[str, list[tuple[float, float]]], about: str) -> float:
    """Print how fast each side was in its best round, by the clock and by what its thread got of a processor.

    The best round is the one that other work on the machine disturbed least. Returns the table's speed over that of the
    faster engine that reads again, by the measure that shows the table worse.
    """
    ours = np.array(seconds["table"]).min(axis=0)
    print(f"  {'':24}{'by the clock':>24}{'of a processor':>24}   thousand ids/s, the table over it")
    print(f"  {'table':24}{_rate(ours[0]):>16}{'':8}{_rate(ours[1]):>16}{'':8}   {about}")
    ratios = {}
    for name, each in seconds.items():
        if name != "table":
            theirs = np.array(each).min(axis=0)
            times = theirs / ours
            columns = [f"{_rate(theirs[i]):>16}{f'{times[i]:.1f}x':>8}" for i in range(2)]
            print(f"  {name:24}{''.join(columns)}")
            ratios[name] = float(times.min())
    return min((ratio for name, ratio in ratios.items() if "kept" not in name), default=float("nan"))


def _rate(seconds: float) -> str:
    """Return thousand ids a second."""
    return f"{BATCH_IDS / seconds / 1e3:.0f}"


def confined_side(name: str, args: argparse.Namespace, limit_bytes: int, results: Any) -> None:
    """Time one side in a process of its own that gets `limit_bytes` of memory, page cache included."""
    ids = batches("skewed", args.rows, 60)
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    group = f"dovetail-benchmark-{os.getpid()}"
    gradients = np.zeros((BATCH_IDS, args.width), dtype=np.float32)
    try:
        if name == "table":
            with Table(width=args.width, host_rows=2000, folder=folder / "warm") as warm:
                table_step(warm)(ids[0][:9000], gradients[:9000])  # compile outside
            confine(group, limit_bytes)
            with cold_table(args, folder / "table") as table:
                seconds = wall_and_cpu_s(table_step(table), ids, args.width, 30)
        else:
            filled(ENGINES[name](folder / name, args.width, budget_bytes(args)), args).close()
            forget_pages(folder)
            confine(group, limit_bytes)
            engine = ENGINES[name](folder / name, args.width, budget_bytes(args))
            step = engine_step(engine, reads_again=True)
            seconds = wall_and_cpu_s(step, ids[: args.confined_steps], args.width, 3)
            engine.close()
        used = int((GROUPS / group / "memory.max_usage_in_bytes").read_text())
        results.put((name, seconds, used))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def confined(args: argparse.Namespace) -> float:
    """Compare with key-value engines where the page cache counts too; return the worse ratio to them."""
    limit_bytes = budget_bytes(args) + (args.working_megabytes << 20)
    if not can_confine():
        print("this user may not limit the memory of processes (cgroup v1)")
        return float("nan")
    print(
        f"confined: {args.rows:,} rows of {args.width}, skewed; each side in a process that may take "
        f"{format_bytes(limit_bytes)} more, page cache included; two runs"
    )
    spawn = multiprocessing.get_context("spawn")
    seconds: dict[str, list[tuple[float, float]]] = {}
    for name in ("table", *ENGINES, "table", *ENGINES):
        results = spawn.Queue()
        process = spawn.Process(target=confined_side, args=(name, args, limit_bytes, results))
        process.start()
        process.join()
        group = GROUPS / f"dovetail-benchmark-{process.pid}"
        if group.exists():
            (group / "memory.force_empty").write_text("0")
            group.rmdir()
        if process.exitcode:
            print(f"  {name:24}ended with status {process.exitcode}")
            continue
        _, took_s, used = results.get()
        seconds.setdefault(name, []).append(took_s)
        print(f"  {name:24}{took_s[0] * 1e3:8.1f} ms a step, at most {format_bytes(used)} taken")
    return report(seconds, "") if "table" in seconds else float("nan")


def distinct(ids: list[Keys]) -> list[list[int]]:
    """Return the distinct rows of each batch: a batch asks for a row once."""
    return [np.unique(batch).tolist() for batch in ids]


def lru_misses(asked: list[list[int]], capacity: int, counted_from: int) -> int:
    """Return the misses of a cache that drops the least recently used row; first uses are no fetches."""
    cache: OrderedDict[int, None] = OrderedDict()
    known: set[int] = set()
    misses = 0
    for number, batch in enumerate(asked):
        for row in batch:
            if row in cache:
                cache.move_to_end(row)
                continue
            misses += row in known and number >= counted_from
            known.add(row)
            cache[row] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return misses


def priority_misses(asked: list[list[int]], capacity: int, counted_from: int, *, belady: bool) -> int:
    """Return the misses of a cache that drops the least counted row (LFU) or the one needed last (Belady)."""
    uses: dict[int, list[int]] = {}
    if belady:
        for number in range(len(asked) - 1, -1, -1):
            for row in asked[number]:
                uses.setdefault(row, []).append(number)
    counts: dict[int, int] = {}
    rank: dict[int, int] = {}
    cached: set[int] = set()
    known: set[int] = set()
    heap: list[tuple[int, int]] = []
    misses = 0
    for number, batch in enumerate(asked):
        for row in batch:
            counts[row] = counts.get(row, 0) + 1
            if belady:
                uses[row].pop()
                rank[row] = -(uses[row][-1] if uses[row] else 1 << 40)
            else:
                rank[row] = counts[row]
            heapq.heappush(heap, (rank[row], row))
            if row not in cached:
                misses += row in known and number >= counted_from
                known.add(row)
                cached.add(row)
            while len(cached) > capacity:
                value, victim = heapq.heappop(heap)
                if victim in cached and rank[victim] == value:
                    cached.discard(victim)
    return misses


def oracle_misses(asked: list[list[int]], capacity: int, counted_from: int, shares: NDArray[np.float64]) -> int:
    """Return the misses of a cache that knows how often each row is asked for and always holds the top ones."""
    hot = set(np.argsort(-shares, kind="stable")[:capacity].tolist())
    known: set[int] = set()
    misses = 0
    for number, batch in enumerate(asked):
        if number >= counted_from:
            misses += sum(row in known and row not in hot for row in batch)
        known.update(batch)
    return misses


def table_misses(ids: list[Keys], capacity: int, counted_from: int, depth: int) -> int:
    """Return the rows the table fetches, at look-ups and ahead of them."""
    folder = Path(tempfile.mkdtemp())
    try:
        with Table(width=2, host_bytes=1 << 30, host_rows=capacity, folder=folder) as table:
            for number, batch in enumerate(ids):
                if number == counted_from:
                    before = table.stats().num_fetched
                if depth:
                    table.prepare(ids[number + 1 : number + 1 + depth]).result(timeout=60)
                table.lookup(batch)
            return table.stats().num_fetched - before
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def misses(args: argparse.Namespace) -> float:
    """Count fetches on skewed traffic; return those of the table over those of the oracle."""
    num_rows, capacity, num_batches = args.rows, args.rows // 10, args.batches
    ids = batches("skewed", num_rows, num_batches)
    counted_from = num_batches // 2
    asked = distinct(ids)
    shares = row_shares(num_rows, FITTED)
    order = np.random.default_rng(0).permutation(num_rows)
    by_row = np.empty(num_rows)
    by_row[order] = shares
    ours = {f"table, look-ahead {depth}": table_misses(ids, capacity, counted_from, depth) for depth in (0, 1, 4, 8)}
    looked_up = sum(len(batch) for batch in asked[counted_from:])
    results = {
        **ours,
        "perfect-frequency oracle": oracle_misses(asked, capacity, counted_from, by_row),
        "LRU": lru_misses(asked, capacity, counted_from),
        "LFU": priority_misses(asked, capacity, counted_from, belady=False),
        "Belady": priority_misses(asked, capacity, counted_from, belady=True),
    }
    oracle = results["perfect-frequency oracle"]
    print(
        f"misses: {num_rows:,} rows, {capacity:,} in RAM, {num_batches} batches of {BATCH_IDS} ids, the second half "
        f"counted: {looked_up:,} distinct rows asked for"
    )
    for name, count in results.items():
        print(f"  {name:26}{count:10,}  {count / looked_up:7.2%}  {count / oracle:.3f}x the oracle")
    return list(ours.values())[-1] / oracle


def precision(_: argparse.Namespace) -> float:
    """Fit a hidden table of dot products through each precision; return the largest loss over that of float32."""
    num_rows, width = 20_000, 16
    truth = np.random.default_rng(3).normal(size=(num_rows, width)).astype(np.float32) * 0.1
    ids = [batch[:4096] for batch in batches("skewed", num_rows, 600, seed=4)]
    losses = {}
    for name in ("float32", "bfloat16", "int8"):
        folder = Path(tempfile.mkdtemp())
        settings = {"host_rows": num_rows // 10, "folder": folder, "cold_precision": name}
        with Table(width=width, optimizer=Adagrad(learning_rate=0.02), **settings) as table:  # type: ignore[arg-type]
            recent = []
            for number, batch in enumerate(ids):
                error = table.lookup(batch) - truth[batch]
                table.update(batch, error)
                if number >= 500:
                    recent.append(float((error**2).mean()))
            losses[name] = float(np.mean(recent))
        shutil.rmtree(folder, ignore_errors=True)
        record_bytes = 4 * RecordLayout(width=width, state_width=width, precision=name).words  # type: ignore[arg-type]
        print(f"  {name:9} squared error {losses[name]:.3e}, {record_bytes} bytes on disk a cold row")
    return max(losses.values()) / losses["float32"]


def resident_bytes() -> int:
    """Return the resident set of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def large(args: argparse.Namespace) -> float:
    """Train a table much larger than its budget; return the growth of RSS over the budget."""
    width = 64
    num_rows = int(args.gigabytes * 1e9 / (8 * width))
    budget = int(args.gigabytes * 1e8)
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    gradients = np.full((BATCH_IDS, width), 0.01, dtype=np.float32)
    try:
        with Table(width=width, host_bytes=1 << 26) as warm:  # compile before the memory is looked at
            table_step(warm)(np.arange(BATCH_IDS), gradients)
        ids = batches("skewed", num_rows, args.batches)
        before = resident_bytes()
        peak = 0
        start = time.perf_counter()
        with Table(width=width, host_bytes=budget, folder=folder) as table:
            step = table_step(table)
            for first in range(0, num_rows, BATCH_IDS):
                step(np.arange(first, first + BATCH_IDS), gradients)
                peak = max(peak, resident_bytes())
            filled_s = time.perf_counter() - start
            for batch in ids:
                step(batch, gradients)
                peak = max(peak, resident_bytes())
            stats = table.stats()
        seconds = time.perf_counter() - start
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"large: {stats.num_rows:,} rows of {8 * width} bytes = {format_bytes(stats.num_rows * 8 * width)}, budget "
        f"{format_bytes(budget)}; the table reports {format_bytes(stats.memory_bytes)}; RSS before "
        f"{format_bytes(before)}, at most {format_bytes(peak)}; on disk {format_bytes(stats.disk_bytes)}; made in "
        f"{filled_s:.0f} s, then {args.batches} skewed batches in {seconds - filled_s:.0f} s"
    )
    return (peak - before) / budget


BENCHMARKS = {
    "host": host,
    "cold": cold,
    "confined": confined,
    "misses": misses,
    "precision": precision,
    "large": large,
}


def main() -> None:
    """Run one benchmark and print its ratio last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=list(BENCHMARKS))
    parser.add_argument("--rows", type=int, default=405_528)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--folder", default=None, help="where `large` and `confined` put their rows")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side of `cold`")
    parser.add_argument("--working-megabytes", type=int, default=24, help="memory of `confined` beside the budget")
    parser.add_argument("--confined-steps", type=int, default=10, help="steps of the engines in `confined`")
    args = parser.parse_args()
    print(f"ratio {BENCHMARKS[args.which](args):.3f}")


if __name__ == "__main__":
    main()
