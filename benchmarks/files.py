"""How fast samples come from a Parquet file in training order, beside what one would write oneself.

    python benchmarks/files.py            # reading alone (--ours: Dovetail's side alone)
    python benchmarks/files.py --tensorflow DIR/bin/python --train   # all sides, and what `--train` says: 8 minutes
    python benchmarks/files.py --only-train   # `dovetail train` from the file beside samples in memory
    python benchmarks/files.py --steps    # processor time a sample, from the file and from memory
    python benchmarks/files.py --memory 20   # the memory that training takes from a file 30 times as large

The file has 1 M samples of 26 slots and 13 numbers, and is written first. All sides read the same file in an order of
the same kind: row groups at random, samples drawn over several of them, batches of 4,096. Prints the ratio last. What a
process has in memory is what Linux calls RssAnon and RssShmem: all of it but pages of files, which the page cache
shares with everyone and gives up when it has to; looked at five times a second. In short trainings what a process loads
and compiles at its first batch weighs more than reading: take 1 M samples. Where others use the cores too, samples a
second of processor time, of a side's processes together, say what a core would read. TensorFlow lives in an environment
of its own (`benchmarks/rivals/tensorflow_data.py`). Hugging Face's side takes batches by their numbers from its own
memory-mapped copy, which it is given before the clock runs, as Dovetail is its cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as arrow_parquet
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, get_worker_info

from dovetail.data import Clicks, Loader, Source, as_source, load_data
from dovetail.data.files.write import write_parquet
from dovetail.runtime import train
from dovetail.runtime.messages import Report
from rivals.side import run_side

SAMPLES, BATCH, WINDOW_GROUPS = 1_000_000, 4096, 4
SLOTS = [f"slot{number + 1}" for number in range(26)]
NUMBERS = [f"number{number + 1}" for number in range(13)]
ROWS = 1_000_000
OURS = "dovetail, cached, readers as needed"
DATASETS_BATCHES = 60
"""That Hugging Face's side reads."""


class RowGroups(IterableDataset[Any]):
    """What a good engineer writes: row groups at random, several open at once, rows shuffled over them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        mine, of = (0, 1) if info is None else (info.id, info.num_workers)
        file = arrow_parquet.ParquetFile(self._path)
        draw = np.random.default_rng(0)
        groups = draw.permutation(file.num_row_groups)[mine::of]
        for first in range(0, len(groups), WINDOW_GROUPS):
            table = file.read_row_groups(groups[first : first + WINDOW_GROUPS].tolist())
            ids = np.stack([table[name].to_numpy() for name in SLOTS], axis=1)
            dense = np.stack([table[name].to_numpy() for name in NUMBERS], axis=1)
            labels = table["label"].to_numpy().astype(np.float32)
            order = draw.permutation(len(labels))
            for begin in range(0, len(order), BATCH):
                rows = order[begin : begin + BATCH]
                yield torch.from_numpy(ids[rows]), torch.from_numpy(dense[rows]), torch.from_numpy(labels[rows])


def in_memory(path: str, hash_into: int) -> Source:
    """Return the same samples in memory; what `dovetail train` reads for comparison."""
    table = arrow_parquet.read_table(path)
    return as_source(table, label="label", dense=NUMBERS, slots=SLOTS, hash_into=hash_into)


@dataclass(frozen=True)
class Speed:
    """How fast a side reads."""

    per_s: float
    per_processor_s: float


def processor_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in found)


def speed_of(batches: Iterable[Any], count: Callable[[Any], int]) -> Speed:
    """Return the speed over all batches."""
    begin_s, begin_processor_s, total = time.perf_counter(), processor_s(), 0
    for batch in batches:
        total += count(batch)
    span_s = time.perf_counter() - begin_s
    return Speed(total / span_s, total / (processor_s() - begin_processor_s))


def reading(path: str, cache: str, *, only_ours: bool, tensorflow: str | None) -> dict[str, Speed]:
    """Return the speed of each side."""
    options = {"path": path, "dense": NUMBERS, "slots": SLOTS, "hash_into": ROWS}
    source = load_data("parquet", cache=cache, **options)
    found: dict[str, Speed] = {}

    def ours(data: Source, epoch: int, **wishes: Any) -> Speed:
        loader = Loader(data, batch_size=BATCH, epoch=epoch, block_samples=512, pin=False, **wishes)
        return speed_of(loader, lambda batch: batch.num_samples)

    source.read(0, 1)
    ours(source, 0, prefetch=0, stop=4 * BATCH)  # compiles
    found["dovetail, first epoch, nothing cached"] = ours(load_data("parquet", cache=False, **options), 0)
    ours(source, 0)
    source.settle()
    one_core = [ours(source, epoch, prefetch=0) for epoch in (1, 2, 3)]
    found["dovetail, cached, one core"] = max(one_core, key=lambda speed: speed.per_processor_s)
    found[OURS] = ours(source, 4)
    if only_ours:
        return found
    cores = len(os.sched_getaffinity(0))
    mine = DataLoader(RowGroups(path), batch_size=None, num_workers=cores)
    found[f"PyArrow IterableDataset, {cores} processes"] = speed_of(mine, lambda batch: len(batch[2]))
    found |= by_datasets(path, cores)
    if tensorflow:
        side = run_side("tensorflow_data", path, "--batch", BATCH, "--window", WINDOW_GROUPS, python=tensorflow)
        name = f"tf.data of TensorFlow {side['tensorflow']}"
        found[name] = Speed(side["samples_per_s"], side["samples_a_processor_s"])
    return found


def by_datasets(path: str, cores: int) -> dict[str, Speed]:
    """Return the speed of a `DataLoader` over Hugging Face `datasets`, which give a batch by its samples' numbers."""
    try:
        import datasets
    except ImportError:
        print("datasets is not installed: that side is left out", file=sys.stderr)
        return {}
    with tempfile.TemporaryDirectory() as folder:
        datasets.disable_progress_bars()
        table = datasets.Dataset.from_parquet(path, cache_dir=folder).with_format("torch")
        some = table.select(range(min(len(table), DATASETS_BATCHES * BATCH)))
        sampler = BatchSampler(RandomSampler(some), BATCH, drop_last=False)
        loader = DataLoader(some, sampler=sampler, batch_size=None, num_workers=cores)
        return {f"Hugging Face datasets, {cores} processes": speed_of(loader, lambda batch: len(batch["label"]))}


def trained(name: str, options: dict[str, Any], out: Path, samples: int) -> tuple[float, float]:
    """Return how long `dovetail train`, a cold process, trains, and the processor time of the whole command.

    What it takes to open data is in the second alone.
    """
    run = {
        "model": {"name": "ctr-dnn"},
        "data": {"name": name, "options": options, "samples": samples},
        "training": {"batch": BATCH, "epochs": 1},
    }
    file = out.with_suffix(".json")
    file.write_text(json.dumps(run))
    begin_s, begin_processor_s = time.perf_counter(), processor_s()
    command = [str(Path(sys.executable).parent / "dovetail"), "train", str(file), "--out", str(out), "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    seconds = json.loads((out / "summary.json").read_text())["seconds"]
    whole_s, used_s = time.perf_counter() - begin_s, processor_s() - begin_processor_s
    print(f"{out.name:<12} the whole command {whole_s:6.1f} s, training {seconds:6.1f} s, processor {used_s:6.1f} s")
    return float(seconds), used_s


class ProcessorTime:
    """Looks at the processor time of this process from a report with samples to the last one."""

    def __init__(self) -> None:
        self._told: list[tuple[int, float]] = []

    def __call__(self, report: Report) -> None:
        """Take in a report."""
        if report.samples and (not self._told or report.samples > self._told[-1][0]):
            self._told.append((report.samples, time.process_time()))

    @property
    def us_a_sample(self) -> float:
        """Return the microseconds of it a sample."""
        (first, begin_s), (last, end_s) = self._told[0], self._told[-1]
        return (end_s - begin_s) / (last - first) * 1e6


def steps(path: str, cache: str, samples: int) -> None:
    """Train in one thread from the file and from memory, in turn, and print the processor time of each round."""
    torch.set_num_threads(1)
    memory = in_memory(path, ROWS)
    from_file = {"dense": NUMBERS, "slots": SLOTS, "hash_into": ROWS, "cache": cache}
    found: dict[str, list[float]] = {}
    for side in ("first epoch", *("memory", "cached") * 5):
        data, options = (memory, None) if side == "memory" else (path, from_file)
        clock = ProcessorTime()
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            train(
                "ctr-dnn",
                data,
                data_options=options,
                folder=out,
                batch=BATCH,
                epochs=1,
                samples=samples,
                on_report=clock,
            )
        found.setdefault(side, []).append(clock.us_a_sample)
        print(f"{side:<12} {clock.us_a_sample:6.2f} us a sample", flush=True)
    medians = {side: statistics.median(each) for side, each in found.items()}
    print(f"ratio, file to memory: {medians['memory'] / medians['cached']:.2f}")


def in_so_much_memory(path: str, folder: Path, times: int) -> None:
    """Train one epoch from a file so many times as large, and print the most memory that the process had."""
    table = arrow_parquet.read_table(path)
    large = folder / "large.parquet"
    with arrow_parquet.ParquetWriter(large, table.schema) as writer:
        for _ in range(times):
            writer.write_table(table, row_group_size=65_536)
    samples = times * table.num_rows
    del table
    options = {"path": str(large), "dense": NUMBERS, "slots": SLOTS, "hash_into": 1000, "cache": str(folder / "cache")}
    run = {
        "model": {"name": "ctr-dnn", "options": {"num_rows": 1000, "width": 4, "hidden": [16]}},
        "data": {"name": "parquet", "options": options},
        "training": {"batch": BATCH, "epochs": 1},
    }
    file = folder / "run.json"
    file.write_text(json.dumps(run))
    command = [
        str(Path(sys.executable).parent / "dovetail"),
        "train",
        str(file),
        "--out",
        str(folder / "run"),
        "--json",
    ]
    begin_s, most = time.perf_counter(), {"anonymous": 0, "mapped": 0}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        while training.poll() is None:
            for kind, kib in resident(training.pid).items():
                most[kind] = max(most[kind], kib)
            time.sleep(0.2)
    if training.returncode:
        sys.exit(f"the training ended with status {training.returncode}")
    decoded = sum(entry.stat().st_size for entry in (folder / "cache").rglob("*") if entry.is_file())
    size, seconds = large.stat().st_size, time.perf_counter() - begin_s
    print(f"{samples:,} samples, {size / 1e9:.1f} GB of Parquet, {decoded / 1e9:.1f} GB decoded in the cache")
    print(f"one epoch: {seconds:.0f} s, the whole command")
    own, files = most["anonymous"] * 1024 / 1e9, most["mapped"] * 1024 / 1e9
    print(f"most memory beside the page cache: {own:.2f} GB (pages of files: {files:.2f} GB)")


def resident(process: int) -> dict[str, int]:
    """Return the KiB that a process has in memory: its own, and of files."""
    found = {"anonymous": 0, "mapped": 0}
    kinds = {"RssAnon": "anonymous", "RssShmem": "anonymous", "RssFile": "mapped"}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in kinds:
                found[kinds[name]] += int(rest.split()[0])
    return found


def main() -> None:
    """Write the file, read it by all sides, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ours", action="store_true", help="leave the others out")
    parser.add_argument("--tensorflow", help="the Python of TensorFlow's environment")
    parser.add_argument("--train", action="store_true", help="also train from the file and from memory")
    parser.add_argument("--only-train", action="store_true", help="nothing else")
    parser.add_argument("--train-samples", type=int, default=SAMPLES // 4)
    parser.add_argument("--steps", action="store_true", help="processor time of training from the file and from memory")
    parser.add_argument("--memory", type=int, metavar="TIMES", help="how many times as large a file is trained from")
    parser.add_argument("--file", type=Path, help="a file that was written before")
    wishes = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dovetail-files-") as folder:
        path = str(wishes.file or Path(folder) / "samples.parquet")
        if not Path(path).exists():
            write_parquet(Clicks(num_multi_valued=0), path, num_samples=SAMPLES)
        cache = str(Path(folder) / "cache")
        if wishes.steps:
            steps(path, cache, wishes.train_samples)
            return
        if wishes.memory:
            in_so_much_memory(path, Path(folder), wishes.memory)
            return
        if not wishes.only_train:
            found = reading(path, cache, only_ours=wishes.ours, tensorflow=wishes.tensorflow)
            print(f"{'side':<45} {'samples/s':>12} {'a processor second':>20}")
            for side, speed in found.items():
                print(f"{side:<45} {speed.per_s:12,.0f} {speed.per_processor_s:20,.0f}")
            others = [speed for side, speed in found.items() if not side.startswith("dovetail")]
            if others:
                by_clock = found[OURS].per_s / max(each.per_s for each in others)
                by_processor = found[OURS].per_processor_s / max(each.per_processor_s for each in others)
                print(f"ratio, dovetail cached to the fastest other: {by_clock:.1f}, by processor {by_processor:.1f}")
        if wishes.train or wishes.only_train:
            in_training(path, Path(folder), wishes.train_samples)


def in_training(path: str, folder: Path, samples: int) -> None:
    """Train by the command from the file, from memory, and from the file again; print the ratios."""
    cache = str(folder / "trained")
    options = {"path": path, "dense": NUMBERS, "slots": SLOTS, "hash_into": ROWS, "cache": cache}
    own = {"path": path, "hash_into": ROWS}
    first_s, first_used_s = trained("parquet", options, folder / "first", samples)
    memory_s, memory_used_s = trained("files:in_memory", own, folder / "memory", samples)
    file_s, file_used_s = trained("parquet", options, folder / "again", samples)
    print(f"dovetail train, {samples:,} samples: from memory {memory_s:.1f} s, from the file {file_s:.1f} s,")
    print(f"  first epoch, nothing cached {first_s:.1f} s")
    by_processor = memory_used_s / file_used_s, memory_used_s / first_used_s
    print(f"by processor time of whole commands: {by_processor[0]:.2f}, first epoch {by_processor[1]:.2f}")
    print(f"ratio of speeds, file to memory: {memory_s / file_s:.2f}; first epoch: {memory_s / first_s:.2f}")


if __name__ == "__main__":
    main()
