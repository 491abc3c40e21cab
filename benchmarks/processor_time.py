"""What a step of training costs each process in processor time, which bears a busy machine better than samples/s.

    python benchmarks/processor_time.py                       # Dovetail and plain PyTorch
    python benchmarks/processor_time.py --against DIR/src     # and another checkout's code, sides in turn

CTR-DNN of `parameter_server.py` (batch 1024, one server, two workers, in `sync` or `--mode async`), 65,536 samples in
memory, measured after the first epoch, in which rows are made. Milliseconds of user and system time of all threads; the
median of the rounds. The ratio comes last: plain PyTorch's with one thread, or the other checkout's, over ours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "rivals"))

SAMPLES, BATCH = 65_536, 1024
ROLES = ("coordinator", "server", "workers")


def main() -> None:
    """Run all sides in turn and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="sync", choices=["sync", "async"])
    parser.add_argument("--optimizer", default="adagrad", choices=["adagrad", "adam"])
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the `src` of another checkout")
    parser.add_argument("--side", choices=["dovetail", "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        print(json.dumps(measure(arguments) if arguments.side == "dovetail" else measure_plain(arguments)))
        return
    from make_data import make_data

    sides: dict[str, tuple[str, Path | None]] = {"this checkout": ("dovetail", None)}
    sides |= {"the other": ("dovetail", arguments.against)} if arguments.against else {}
    sides["plain PyTorch, 1 thread"] = ("plain", None)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_data(data, num_samples=SAMPLES)
        for _ in range(arguments.rounds):
            for name, (side, source) in sides.items():
                found[name].append(run_side(side, source, data, arguments))
    totals = {}
    for name, rounds in found.items():
        totals[name] = statistics.median(each["total"] for each in rounds)
        parts = ", ".join(f"{role} {statistics.median(each[role] for each in rounds):.1f}" for role in rounds[0])
        each = ", ".join(f"{each['total']:.1f}" for each in rounds)
        print(f"{name}: {parts} ms a step of {BATCH} samples ({each})")
    for name, total in list(totals.items())[:0:-1]:
        print(f"{name} / this checkout: {total / totals['this checkout']:.2f}x")


def run_side(side: str, source: Path | None, data: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return what a side's process prints."""
    environment = os.environ | ({"PYTHONPATH": str(source)} if source else {})
    options = ["--side", side, "--data", data, "--mode", arguments.mode, "--seconds", arguments.seconds]
    command = [sys.executable, __file__, *map(str, options), "--optimizer", arguments.optimizer]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds a step that each role of a run takes."""
    from ctr_dnn import HIDDEN, LEARNING_RATES, NUM_ROWS, WIDTH
    from memory_source import MemorySource

    from dovetail.runtime.launch.local import LocalRun
    from dovetail.runtime.prepare.run_folder import prepare
    from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
    from dovetail.spec.run_sections import RunOptimizer

    source, optimizer = MemorySource(arguments.data), arguments.optimizer
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}),
        data=RunData(shuffle=False),
        training=RunTraining(batch=BATCH, epochs=1_000_000, mode=arguments.mode, micro_batch=4096),
        optimizer=RunOptimizer(name=optimizer, learning_rate=LEARNING_RATES[optimizer]),
        servers=RunServers(host_bytes=2 << 30),
        workers=[RunWorker(count=2)],
    )
    folder = Path(tempfile.mkdtemp(prefix="dovetail-benchmark-"))
    try:
        prepare(run, folder, source=source)
        with LocalRun(folder, source=source) as running:
            wait_for(running, lambda: samples_of(running) > SAMPLES + 16 * BATCH)
            before, begun, end_s = used_s(), samples_of(running), time.perf_counter() + arguments.seconds
            wait_for(running, lambda: time.perf_counter() > end_s)
            after, steps = used_s(), (samples_of(running) - begun) / BATCH
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    parts = {role: 1e3 * (after[role] - before[role]) / steps for role in ROLES}
    return parts | {"total": sum(parts.values())}


def measure_plain(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds a step of plain PyTorch; one thread, for two spin while they wait for each other."""
    import torch
    from ctr_dnn import CtrDnn, RowsAndLayers, load_batches, train_step

    torch.set_num_threads(1)
    model = CtrDnn()
    optimizer, batches = RowsAndLayers(model, arguments.optimizer), load_batches(arguments.data, BATCH)
    for _ in range(SAMPLES // BATCH):
        train_step(model, optimizer, next(batches))
    begun_s, end_s, steps = time.process_time(), time.perf_counter() + arguments.seconds, 0
    while time.perf_counter() < end_s:
        train_step(model, optimizer, next(batches))
        steps += 1
    return {"total": 1e3 * (time.process_time() - begun_s) / steps}


def wait_for(running: Any, ready: Any, limit_s: float = 200.0) -> None:
    """Wait for something to happen in a run, and for a report after that."""
    end_s = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end_s:
            sys.exit(f"error: the run stands still after {limit_s:.0f} s")
        running.look()
    while running.look() is None:
        pass


def samples_of(running: Any) -> int:
    """Return how many samples a run has done."""
    return running.report.samples if running.report is not None else 0


def used_s() -> dict[str, float]:
    """Return the processor time of the processes below this one, by role."""
    used, parents, words, names = dict.fromkeys(ROLES, 0.0), {}, {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has just ended
            continue
        process_id = int(file.parent.name)
        word = rest.split()
        parents[process_id], words[process_id], names[process_id] = int(word[1]), word, name
    for process_id in [each for each in words if is_below(each, parents)]:
        name = names[process_id]
        role = "coordinator" if name == "coordinator" else "server" if name.startswith("server-") else "workers"
        used[role] += sum(map(int, words[process_id][11:13])) / os.sysconf("SC_CLK_TCK")
    return used


def is_below(process_id: int, parents: dict[int, int]) -> bool:
    """Say whether this process started another, or one that did."""
    while process_id in parents:
        process_id = parents[process_id]
        if process_id == os.getpid():
            return True
    return False


if __name__ == "__main__":
    main()
