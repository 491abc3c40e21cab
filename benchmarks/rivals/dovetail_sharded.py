"""CTR-DNN through `dovetail.runtime.train`, its rows over the workers.

    python benchmarks/rivals/make_data.py out/rivals.npz
    python benchmarks/rivals/dovetail_sharded.py --data out/rivals.npz --workers 2

The last line is JSON with samples_per_s. Rows are made in the first epoch, which is over before it is measured: on
other sides the whole table is made at the start.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from ctr_dnn import HIDDEN, LEARNING_RATES, NUM_ROWS, WIDTH
from memory_source import MemorySource
from rates import MOST_OTHERS, WINDOW_S, Window, add_options, others_s, print_result

from dovetail.runtime import train
from dovetail.runtime.messages import Report
from dovetail.spec.run import RunServers


class Watch:
    """Collects windows from the reports of a run, and says when there are enough."""

    def __init__(self, options: argparse.Namespace, epoch: int) -> None:
        """Begin to measure after the warm-up and the first epoch."""
        self._options, self._epoch, self._root = options, epoch, os.getpid()
        self._begun_s: float | None = None
        self._measures_s = self._quiet_s = 0.0
        self._last: tuple[float, int, float] | None = None
        self.windows: list[Window] = []
        self.report: Report | None = None

    def __call__(self, report: Report) -> None:
        """Take in how the run goes."""
        now_s, self.report = time.perf_counter(), report
        if not report.samples:
            return
        self._begun_s = self._begun_s or now_s
        if self._last is None:
            if now_s - self._begun_s >= self._options.warm_up and report.samples >= self._epoch:
                self._last, self._measures_s = (now_s, report.samples, others_s(self._root)), now_s
            return
        begun_s, samples, others = self._last
        if (took_s := now_s - begun_s) >= WINDOW_S:
            self._last = (now_s, report.samples, others_s(self._root))
            other_cores = (self._last[2] - others) / took_s
            self.windows.append(Window(samples_per_s=(report.samples - samples) / took_s, other_cores=other_cores))
            self._quiet_s += took_s if other_cores < MOST_OTHERS else 0.0

    def is_over(self) -> bool:
        """Say whether enough was measured."""
        waited_s = time.perf_counter() - self._measures_s if self._measures_s else 0.0
        return self._quiet_s >= self._options.seconds or waited_s > self._options.seconds + self._options.patience


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    source = MemorySource(arguments.data)
    watch = Watch(arguments, source.num_samples)
    folder = Path(tempfile.mkdtemp(prefix="dovetail-benchmark-"))
    try:
        train(
            "ctr-dnn",
            source,
            folder=folder / "run",
            workers=arguments.workers,
            servers=RunServers(host_bytes=2 << 30),
            table={"place": "sharded"},
            model_options={"num_rows": NUM_ROWS, "width": WIDTH, "hidden": [HIDDEN] * 3},
            optimizer={"name": arguments.optimizer, "learning_rate": LEARNING_RATES[arguments.optimizer]},
            batch=arguments.batch,
            epochs=1_000_000,
            shuffle=False,
            progress=False,
            on_report=watch,
            stop=watch.is_over,
        )
        report = watch.report
        print_result(
            "dovetail-sharded",
            watch.windows,
            workers=arguments.workers,
            optimizer=arguments.optimizer,
            loss=report.loss if report else None,
            idle={worker.name: round(worker.idle, 3) for worker in report.workers} if report else {},
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
