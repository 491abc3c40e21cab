"""How long training pauses when a run gets other workers: 1 -> 2 -> 4 -> 1.

    python benchmarks/resize.py                # about three minutes on two cores

Three sides, a small CTR-DNN each. One resizes a run as `dovetail serve` does, by workers that come and go while the
rest work on. One has the run taken over by a new launcher with other workers (`dovetail train --resume RUN --workers N
--take-over`): it gets ready, the old one keeps a checkpoint and ends, the new one goes on. The third is torchrun's own
elastic restart of a DDP script of the same size (`benchmarks/elastic_ddp.py`), one agent a worker; it is told not to
wait for more agents than a second (`last_call_timeout`, 30 s by default) and to look every 0.1 s.

A pause is the longest time from the end of one step to the end of the next around a change, so the step itself is in
it. The median step without any change is printed beside. The ratio comes last: torchrun's median over that of workers
that come and go.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.charts.timeline import read_spans
from dovetail.runtime.folder import TIMELINE, ask_for, present_in
from resize_torchrun import Torchrun

SIZES = (1, 2, 4, 1)
WAIT_S = 120.0
SETTLE_S = 1.5
WORDS = "import dovetail.cli.train as t; t.draw_timeline = lambda *_: None; from dovetail.cli.main import main; main()"
"""`dovetail` that keeps a timeline and does not draw it: that would cost the run after it."""
TRAIN = [sys.executable, "-c", WORDS, "train"]


def main() -> None:
    """Measure both sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, change in SIDES.items():
            with tempfile.TemporaryDirectory() as folder:
                pauses, step_s = measure(Path(folder), arguments.batch, change)
            found.setdefault(name, []).extend(pauses)
            shown = ", ".join(
                f"{before} -> {after}: {pause:.2f} s"
                for before, after, pause in zip(SIZES[:-1], SIZES[1:], pauses, strict=True)
            )
            print(f"{name:20}  {shown}  (a step: {1000 * step_s:.0f} ms)", flush=True)
    medians = {name: statistics.median(pauses) for name, pauses in found.items()}
    for name, median in medians.items():
        print(f"{name:20}  median {median:.2f} s, longest {max(found[name]):.2f} s")
    print(f"ratio {medians[TORCHRUN] / medians[JOINING]:.1f}")


class Training:
    """A run that goes on in a process of its own."""

    def __init__(self, folder: Path, batch: int) -> None:
        """Write the run's file and start it on one worker."""
        self.folder, self._out = folder / "run", folder / "out"
        run = {
            "model": {"name": "ctr-dnn", "options": {"num_rows": 26_000, "width": 8, "hidden": [64, 64]}},
            "data": {"options": {"truth": "logistic", "rows_per_slot": 1_000}, "samples": 50_000_000},
            "training": {"batch": batch},
            "optimizer": {"name": "adam", "learning_rate": 0.01},
            "worker": [{"name": "worker"}],
            "checkpoint": {"every_s": 3600.0},
        }
        (folder / "run.json").write_text(json.dumps(run))
        self._begin([str(folder / "run.json"), "--out", str(self.folder)], 1)

    def _begin(self, words: list[str], workers: int) -> None:
        timeline = str(self.folder.parent / "timeline.json")
        with self._out.open("ab") as out:
            self._process = subprocess.Popen(
                [*TRAIN, *words, "--workers", str(workers), "--timeline", timeline], stdout=out, stderr=out
            )

    def wait_for(self, workers: int) -> None:
        """Wait until so many workers work, and then a little longer."""
        until_s = time.monotonic() + WAIT_S
        while (found := present_in(self.folder)) is None or len(found.workers) != workers:
            if time.monotonic() > until_s or self._process.poll() is not None:
                sys.exit(f"error: the run does not get to {workers} workers\n{self._out.read_text()}")
            time.sleep(0.05)
        time.sleep(SETTLE_S)

    def take_over(self, workers: int) -> None:
        """Have a new launcher get ready, stop the old one, and go on with so many workers."""
        old = self._process
        self._begin(["--resume", str(self.folder), "--take-over"], workers)
        old.wait(WAIT_S)

    def end(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(WAIT_S)


JOINING, RESTARTING, TORCHRUN = "workers come and go", "taken over", "torchrun"
SIDES: dict[str, Callable[[Any, int], None] | None] = {
    JOINING: lambda training, workers: ask_for(training.folder, workers),
    RESTARTING: lambda training, workers: training.take_over(workers),
    TORCHRUN: None,
}


def measure(folder: Path, batch: int, change: Callable[[Any, int], None] | None) -> tuple[list[float], float]:
    """Return the pause at each change, and how long a step takes otherwise; without a change, torchrun's."""
    training: Any = Training(folder, batch) if change is not None else Torchrun(folder)
    resize = change or (lambda _, workers: training.resize(workers))
    windows = []
    try:
        training.wait_for(SIZES[0])
        quiet_s = time.time() - SETTLE_S
        for workers in SIZES[1:]:
            begin_s = time.time()
            resize(training, workers)
            training.wait_for(workers)
            windows.append((begin_s, time.time()))
    finally:
        training.end()
    ends = training.step_ends() if change is None else step_ends(training.folder)
    pauses = [max(gaps(ends, begin_s, end_s)) for begin_s, end_s in windows]
    return pauses, statistics.median(gaps(ends, quiet_s, windows[0][0]))


def step_ends(folder: Path) -> list[float]:
    """Return when each step was computed to its end, in order."""
    assert (folder / TIMELINE).is_file()
    ends: dict[int, float] = {}
    for span in read_spans(folder):
        if span.kind == "compute":
            ends[span.step] = max(ends.get(span.step, 0.0), span.end_s)
    return sorted(ends.values())


def gaps(ends: list[float], begin_s: float, end_s: float) -> list[float]:
    """Return the time from step to step within a window, the step before it included."""
    before = [end for end in ends if end < begin_s][-1:]
    inside = before + [end for end in ends if begin_s <= end <= end_s]
    return [after - first for first, after in itertools.pairwise(inside)]


if __name__ == "__main__":
    main()
