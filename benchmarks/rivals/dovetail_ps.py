"""CTR-DNN over one parameter server and workers of Dovetail.

    python benchmarks/rivals/make_data.py out/rivals.npz
    python benchmarks/rivals/dovetail_ps.py --data out/rivals.npz --workers 2 --mode sync

The last line is JSON with samples_per_s. In ssp and async a task has `--batch` samples; in sync all workers together.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ctr_dnn import HIDDEN, LEARNING_RATES, NUM_ROWS, WIDTH
from memory_source import MemorySource
from rates import MOST_OTHERS, WINDOW_S, Window, add_options, others_s, print_result

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer

LONGEST_S = 60.0
"""How much longer than the warm-up the first epoch may take."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--mode", default="sync", choices=["sync", "ssp", "async"])
    parser.add_argument("--dense", default="ps", choices=["ps", "ring"])
    arguments = parser.parse_args()
    source = MemorySource(arguments.data)
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3}),
        data=RunData(shuffle=False),
        training=RunTraining(
            batch=arguments.batch, epochs=1_000_000, mode=arguments.mode, dense=arguments.dense, micro_batch=4096
        ),
        optimizer=RunOptimizer(name=arguments.optimizer, learning_rate=LEARNING_RATES[arguments.optimizer]),
        servers=RunServers(host_bytes=2 << 30),
        workers=[RunWorker(count=arguments.workers, threads=arguments.threads)],
    )
    folder = Path(tempfile.mkdtemp(prefix="dovetail-benchmark-"))
    try:
        prepare(run, folder, source=source)
        with LocalRun(folder, source=source) as running:
            found = list(windows(running, arguments, source.num_samples))
            report = running.report
            print_result(
                f"dovetail-{arguments.mode}-{arguments.dense}",
                found,
                workers=arguments.workers,
                threads=arguments.threads,
                optimizer=arguments.optimizer,
                loss=report.loss if report else None,
                idle={worker.name: round(worker.idle, 3) for worker in report.workers} if report else {},
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def windows(running: LocalRun, options: argparse.Namespace, epoch: int) -> Iterator[Window]:
    """Warm up, then yield the rate of one window after the other, as for the other sides.

    Rows are made in the first epoch, which is over by then: on the other sides the whole table is made at the start.
    """
    while running.report is None or running.report.samples == 0:
        running.look()
    end = time.perf_counter() + options.warm_up
    while time.perf_counter() < end or (running.report.samples < epoch and time.perf_counter() < end + LONGEST_S):
        running.look()
    root, quiet_s = os.getpid(), 0.0
    end = time.perf_counter() + options.seconds + options.patience
    start, done, others = _now(running, root)
    while quiet_s < options.seconds and time.perf_counter() < end:
        while time.perf_counter() - start < WINDOW_S:
            running.look()
        until, done_now, others_now = _now(running, root)
        took_s = until - start
        other_cores = (others_now - others) / took_s
        yield Window(samples_per_s=(done_now - done) / took_s, other_cores=other_cores)
        quiet_s += took_s if other_cores < MOST_OTHERS else 0.0
        start, done, others = until, done_now, others_now


def _now(running: LocalRun, root: int) -> tuple[float, int, float]:
    """Return the time, the samples done and what others have used, all at once."""
    while running.look() is None:
        pass
    report = running.report
    return time.perf_counter(), report.samples if report else 0, others_s(root)


if __name__ == "__main__":
    main()
