"""What slices bring where much of a model is dense: gradients sent in the backward pass, parameters layer by layer.

    python benchmarks/dense_slices.py
    python benchmarks/dense_slices.py --hidden 1024 --rounds 5

CTR-DNN with three wide layers, one server and one worker on one host, `sync`, once with `training.slice_bytes` as it is
and once with 0 (all in one piece), sides in turn. Samples/s after a warm-up, the median of the rounds; the ratio last.
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


def main() -> None:
    """Run both sides in turn and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    from make_data import make_data

    sides = {"slices": 4 << 20, "one piece": 0}
    found: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples.npz"
        make_data(data, num_samples=16_384)
        for _ in range(arguments.rounds):
            for name, slice_bytes in sides.items():
                found[name].append(rate(data, slice_bytes, arguments))
    for name, rates in found.items():
        print(f"{name}: {statistics.median(rates):,.0f} samples/s ({', '.join(f'{each:,.0f}' for each in rates)})")
    ratio = statistics.median(found["slices"]) / statistics.median(found["one piece"])
    print(f"slices / one piece: {ratio:.2f}x")


def rate(data: Path, slice_bytes: int, arguments: argparse.Namespace) -> float:
    """Return the samples/s of a run."""
    from ctr_dnn import NUM_ROWS, WIDTH
    from memory_source import MemorySource

    from dovetail.runtime.launch.local import LocalRun
    from dovetail.runtime.prepare.run_folder import prepare
    from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
    from dovetail.spec.run_sections import RunOptimizer
    from processor_time import samples_of, wait_for

    source, batch = MemorySource(data), arguments.batch
    options = {"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [arguments.hidden] * 3}
    run = Run(
        model=RunModel(name="ctr-dnn", options=options),
        data=RunData(shuffle=False),
        training=RunTraining(batch=batch, epochs=1_000_000, micro_batch=4096, slice_bytes=slice_bytes),
        optimizer=RunOptimizer(name="adagrad", learning_rate=0.01),
        servers=RunServers(host_bytes=2 << 30),
        workers=[RunWorker(count=arguments.workers)],
    )
    folder = Path(tempfile.mkdtemp(prefix="dovetail-benchmark-"))
    try:
        prepare(run, folder, source=source)
        with LocalRun(folder, source=source) as running:
            wait_for(running, lambda: samples_of(running) > 8 * batch)
            begun, begun_s = samples_of(running), time.perf_counter()
            wait_for(running, lambda: time.perf_counter() > begun_s + arguments.seconds)
            return (samples_of(running) - begun) / (time.perf_counter() - begun_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
