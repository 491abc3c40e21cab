"""Workers that keep rows of servers, against workers that fetch all of them: bytes, speed and AUC over a slow link.

    python benchmarks/row_cache.py                     # as root: network namespaces, tc tbf; about ten minutes
    python benchmarks/row_cache.py --samples 40000 --rounds 1 --evaluate 20000
    python benchmarks/row_cache.py --rounds 0          # hit ratios on Zipf keys alone, in this process: seconds

CTR-DNN with 26 slots of 20,000 rows x 16, batches of 4,000 in micro-batches of 1,000; two workers on hosts of their own
with 100 Mbit/s each, coordinator and server in the hub. Rows are asked for as unevenly as in public traffic (`clicks`).
Bytes are those that the workers' network interfaces counted, all of a run's. Sides take turns. In `sync` both sides end
with the same numbers, up to the order of sums; in `ssp` the AUC on samples that nobody trained on says what older rows
cost.

Before that, without servers: which part of the distinct keys of its micro-batches one of two workers keeps, where keys
follow a Zipf law of exponent 1.15 in every slot: in `sync`, where rows that it has trained on change with every step,
and in `ssp`, where they may be used for `staleness` tasks. The ratios of bytes come last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import torch

from dovetail.runtime.blueprint import TableSpec
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.folder import RunSummary
from dovetail.runtime.launch.entry import EnterHost
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.messages import Assign
from dovetail.runtime.messages.parameters import NEW_ENOUGH, NOT_KEPT
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.worker.rows.row_cache import RowCache
from dovetail.spec.run import Run, RunData, RunModel, RunNetwork, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer, RunSaving
from testbed import Hosts, enter
from testbed.hosts import inside
from zipf_keys import make_batches

NAMES = ["near", "far"]
RATE = 12.5e6
"""Bytes a second: 100 Mbit/s."""
NUM_SLOTS, ROWS, WIDTH, HIDDEN = 26, 20_000, 16, [64, 32]
STALENESS = 4


class OnHosts(nullcontext[None]):
    """A bed in which workers live on hosts of their own."""

    def __init__(self, hosts: Hosts) -> None:
        """Take the namespace of each."""
        super().__init__()
        self._hosts = hosts

    def entrance(self, name: str) -> EnterHost | None:
        """Return what moves a process into its namespace."""
        return partial(enter, self._hosts.namespace(name)) if name in NAMES else None

    def started(self, name: str, process_id: int) -> None:
        """Do nothing about a process that was started."""


def counted_bytes(namespace: str) -> tuple[int, int]:
    """Return the bytes that the interfaces of a namespace have received and sent, loopback aside."""
    with inside(namespace):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    counts = [words[1].split() for line in lines if (words := line.split(":"))[0].strip() != "lo"]
    return sum(int(count[0]) for count in counts), sum(int(count[8]) for count in counts)


def make_run(arguments: argparse.Namespace, mode: Any, cache_bytes: int, seed: int, address: str) -> Run:
    """Return the run of one side."""
    data = {"num_slots": NUM_SLOTS, "rows_per_slot": ROWS, "seed": seed}
    return Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_SLOTS * ROWS, "width": WIDTH, "hidden": HIDDEN}),
        data=RunData(options=data, samples=arguments.samples, shuffle=False),
        training=RunTraining(
            batch=arguments.batch, micro_batch=arguments.micro_batch, mode=mode, seed=seed, staleness=STALENESS
        ),
        optimizer=RunOptimizer(name="adam", learning_rate=0.001),
        workers=[RunWorker(name=name, cache_bytes=cache_bytes) for name in NAMES],
        network=RunNetwork(address=address),
        checkpoint=RunSaving(every_s=None),
    )


def measure(arguments: argparse.Namespace, mode: str, cache_bytes: int, seed: int) -> dict[str, float]:
    """Train one side; return what it moved, how fast it was, and how good it is."""
    folder = Path(tempfile.mkdtemp()) / "run"
    try:
        with Hosts(NAMES, rates=[RATE] * len(NAMES)) as hosts:
            with inside(hosts.hub):
                prepare(make_run(arguments, mode, cache_bytes, seed, hosts.bridge_address), folder)
                with LocalRun(folder, sandbox=OnHosts(hosts)) as local:
                    local.wait(timeout_s=900)
            down, up = (sum(each) for each in zip(*(counted_bytes(hosts.namespace(n)) for n in NAMES), strict=True))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        begun = next(line for line in lines if line["samples"] > 0)
        workers = RunSummary.read(folder).workers.values()
        return {
            "down": down,
            "up": up,
            "samples_per_s": (lines[-1]["samples"] - begun["samples"]) / (lines[-1]["time_s"] - begun["time_s"]),
            "kept": sum(each.kept_rows for each in workers) / max(1, sum(each.looked_up_rows for each in workers)),
            "auc": evaluate_run(folder, num_samples=arguments.evaluate).metrics["auc"],
        }
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def compare(arguments: argparse.Namespace, mode: str) -> tuple[float, float]:
    """Train with and without a cache; print both, return how many times as many bytes come, and travel, without."""
    found: dict[int, list[dict[str, float]]] = {0: [], arguments.cache_bytes: []}
    for turn in range(arguments.rounds):
        for budget in found if turn % 2 == 0 else reversed(found):
            found[budget].append(measure(arguments, mode, budget, turn))
    for budget, sides in found.items():
        middle = {name: statistics.median(each[name] for each in sides) for name in sides[0]}
        aucs = ", ".join(f"{each['auc']:.4f}" for each in sides)
        moved = f"{middle['down'] / 1e6:8,.1f} MB down {middle['up'] / 1e6:8,.1f} MB up"
        speed = f"{middle['kept']:6.1%} of rows kept   {middle['samples_per_s']:8,.0f} samples/s"
        print(f"  {mode:5} {'cache' if budget else 'none':5} {moved}   {speed}   AUC {aucs}", flush=True)
    pairs = list(zip(found[0], found[arguments.cache_bytes], strict=True))
    down = statistics.median(off["down"] / on["down"] for off, on in pairs)
    both = statistics.median((off["down"] + off["up"]) / (on["down"] + on["up"]) for off, on in pairs)
    return down, both


def hit_ratio(arguments: argparse.Namespace, mode: str, rows_per_slot: int) -> float:
    """Return the part of a worker's rows that are kept, of keys of a Zipf law: one worker of two that are as fast."""
    samples = arguments.batch if mode == "ssp" else arguments.batch // 2  # a task of its own, or its share of a step
    parts, num_tasks = -(-samples // arguments.micro_batch), 12
    made = make_batches(
        num_tasks * parts, arguments.micro_batch, NUM_SLOTS, rows_per_slot, exponent=1.15, seed=0, threads=2
    )  # fmt: skip
    spec = TableSpec(name="rows", width=WIDTH, num_rows=NUM_SLOTS * rows_per_slot, scale=0.1)
    staleness = STALENESS if mode == "ssp" else None
    cache = RowCache([spec], arguments.cache_bytes, torch.device("cpu"), staleness=staleness)
    num_kept = num_rows = 0
    for task in range(num_tasks):
        for part in range(parts):
            keys = np.unique(made.keys[task * parts + part])
            assign = Assign(
                generation=1, step=task, task=task, epoch=0, ranges=(), is_open=False, clock=task, slowest=task
            )  # fmt: skip
            moment = cache.begin(assign)
            kept = cache.find(0, keys, moment)
            good = kept.ages == (NEW_ENOUGH if mode == "ssp" else NOT_KEPT + 1)
            cache.put(0, keys, torch.zeros((len(keys), WIDTH)), np.flatnonzero(~good), moment)
            num_kept, num_rows = num_kept + int(good.sum()), num_rows + len(keys)
    return num_kept / num_rows


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--evaluate", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4000)
    parser.add_argument("--micro-batch", type=int, default=1000)
    parser.add_argument("--cache-bytes", type=int, default=64 << 20)
    arguments = parser.parse_args()

    for rows_per_slot in (20_000, 1_000_000):
        ratios = [f"{mode} {hit_ratio(arguments, mode, rows_per_slot):.1%}" for mode in ("sync", "ssp")]
        print(f"Zipf 1.15, {NUM_SLOTS} x {rows_per_slot:,} rows, rows that are kept: {', '.join(ratios)}", flush=True)
    if not arguments.rounds:
        return
    print(f"100 Mbit/s, {arguments.samples:,} samples, cache of {arguments.cache_bytes / 2**20:,.0f} MiB a worker")
    found = {mode: compare(arguments, mode) for mode in ("sync", "ssp")}
    for place, words in enumerate(("bytes to workers", "bytes both ways")):
        each = ", ".join(f"{mode} {ratios[place]:.2f}x" for mode, ratios in found.items())
        print(f"{words}, without a cache / with one: {each}")


if __name__ == "__main__":
    main()
