"""How four workers with 0.8, 0.4, 0.2 and 0.1 core finish together.

    python benchmarks/unlike_workers.py            # as root, on two quiet cores

CTR-DNN of `benchmarks/parameter_server.py` in `sync`, a global batch of 16,384, quotas with a period of 10 ms. One side
after the other: Dovetail with shares by speed, the same with equal shares, PyTorch DDP over Gloo under the same quotas,
and Dovetail with quotas that change in mid-run (0.8 becomes 0.2 and 0.2 becomes 0.8). Speeds of 1, 1/2, 1/4 and 1/8
make an equal split take 3.75x as long as an ideal one. An epoch is 262,144 samples. The ratio comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

from ctr_dnn import HIDDEN, LEARNING_RATES, NUM_ROWS, WIDTH
from make_data import make_data
from memory_source import MemorySource
from rates import others_s
from side import run_side

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer

CORES = {"eighty": 0.8, "forty": 0.4, "twenty": 0.2, "ten": 0.1}
EPOCH = 262_144
WARM_UP_STEPS = 6


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=32, help="measured, of each side")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without-ddp", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_data(data, num_samples=EPOCH)
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for name, balance in (("shares by speed", True), ("equal shares", False)):
                steps = arguments.steps if balance else max(8, arguments.steps // 4)
                found = measure(data, Path(folder) / "run", batch=arguments.batch, steps=steps, balance=balance)
                show(name, found)
                rates.setdefault(name, []).append(found["samples_per_s"])
        if not arguments.without_ddp:
            quotas = ",".join(str(cores) for cores in CORES.values())
            options = ("--batch", arguments.batch, "--quota", quotas, "--seconds", 30, "--patience", 10)
            result = run_side("ddp_pytorch", "--data", data, *options)
            print(f"DDP over Gloo: {result['samples_per_s']:,.0f} samples/s", "" if result["quiet"] else "(not quiet)")
            rates["DDP"] = [result["samples_per_s"]]
        follow(data, Path(folder) / "run", batch=arguments.batch)
    median = {name: statistics.median(each) for name, each in rates.items()}
    for name, rate in median.items():
        print(f"{name}: {EPOCH / rate:.1f} s an epoch")
    if "DDP" in median:
        print(f"shares by speed / DDP: {median['shares by speed'] / median['DDP']:.2f}x")
    print(f"shares by speed / equal shares: {median['shares by speed'] / median['equal shares']:.2f}x (ideal 3.75x)")


def make_run(batch: int, *, balance: bool) -> Run:
    """Return the run of one side."""
    return Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}),
        data=RunData(shuffle=False),
        training=RunTraining(batch=batch, epochs=1_000_000, mode="sync", micro_batch=1024, balance=balance),
        optimizer=RunOptimizer(name="adagrad", learning_rate=LEARNING_RATES["adagrad"]),
        servers=RunServers(host_bytes=2 << 30),
        workers=[RunWorker(name=name, cores=cores) for name, cores in CORES.items()],
    )


def measure(data: Path, folder: Path, *, batch: int, steps: int, balance: bool) -> dict[str, Any]:
    """Return how fast a side is after its first steps, each worker's idle time, and what others used meanwhile."""
    with started(data, folder, batch, balance=balance) as running:
        wait_for(running, lambda: step_of(running) >= WARM_UP_STEPS)
        begun_s, first, others = time.perf_counter(), step_of(running), others_s(os.getpid())
        wait_for(running, lambda: step_of(running) >= first + steps)
        seconds = time.perf_counter() - begun_s
        done = step_of(running) - first
        other_cores = (others_s(os.getpid()) - others) / seconds
        report = running.report
        workers = report.workers if report else ()
    return {
        "samples_per_s": done * batch / seconds,
        "idle": {worker.name: worker.idle for worker in workers},
        "share": {worker.name: worker.share for worker in workers},
        "other_cores": other_cores,
    }


def started(data: Path, folder: Path, batch: int, *, balance: bool) -> LocalRun:
    """Return a run that starts in a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    source = MemorySource(data)
    prepare(make_run(batch, balance=balance), folder, source=source, timeline=True)
    return LocalRun(folder, source=source)


def wait_for(running: LocalRun, ready: Callable[[], bool], limit_s: float = 300.0) -> None:
    """Wait for something to happen in a run."""
    end_s = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end_s:
            sys.exit(f"error: the run stands still after {limit_s:.0f} s")
        running.look(0.02)


def step_of(running: LocalRun) -> int:
    """Return how many steps a run has done."""
    return running.report.step if running.report is not None else 0


def show(name: str, found: dict[str, Any]) -> None:
    """Print the figures of a side."""
    idle = statistics.mean(found["idle"].values())
    shares = ", ".join(f"{worker} {share:.1%}" for worker, share in found["share"].items())
    print(f"{name}: {found['samples_per_s']:,.0f} samples/s, mean idle {idle:.1%}, shares {shares}", end="")
    print(f" (others used {found['other_cores']:.2f} cores)", flush=True)


def follow(data: Path, folder: Path, *, batch: int) -> None:
    """Change two quotas in mid-run and print how the shares follow, step by step."""
    with started(data, folder, batch, balance=True) as running:
        wait_for(running, lambda: step_of(running) >= 2 * WARM_UP_STEPS)
        running.sandbox.quotas["eighty"].change(0.2)
        running.sandbox.quotas["twenty"].change(0.8)
        changed = step_of(running)
        wait_for(running, lambda: step_of(running) >= changed + 12)
        lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    print("quotas of eighty and twenty are exchanged after step", changed)
    for line in lines:
        if changed - 2 <= line["step"] <= changed + 10:
            shares = ", ".join(f"{name} {share:.1%}" for name, share in sorted(line["shares"].items()))
            print(f"  step {line['step']}: {line['seconds']:.3f} s, shares {shares}")


if __name__ == "__main__":
    main()
