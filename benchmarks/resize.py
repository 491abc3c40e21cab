"""How long training pauses when a run gets other workers: 1 -> 2 -> 4 -> 1.

    python benchmarks/resize.py                # about two minutes on two cores

A small CTR-DNN in `sync`, as `dovetail train` runs it. One side resizes the run as `dovetail serve` does, by workers
that come and go while the rest work on; the other stops it with a checkpoint (SIGTERM) and goes on with `--resume
--workers N`. A pause is the longest time from the end of one step to the end of the next around a change, as the
workers' own timeline has it, so the step itself is in it. The median step without any change is printed beside. The
ratio comes last.
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

from dovetail.charts.timeline import read_spans
from dovetail.runtime.folder import TIMELINE, ask_for, present_in

SIZES = (1, 2, 4, 1)
WAIT_S = 120.0
SETTLE_S = 1.5
TRAIN = [sys.executable, "-c", "from dovetail.cli.main import main; main()", "train"]


def main() -> None:
    """Measure both sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"workers come and go": [], "stopped and resumed": []}
    for _ in range(arguments.rounds):
        for name, change in (("workers come and go", by_joining), ("stopped and resumed", by_restarting)):
            with tempfile.TemporaryDirectory() as folder:
                pauses, step_s = measure(Path(folder), arguments.batch, change)
            found[name] += pauses
            shown = ", ".join(
                f"{before} -> {after}: {pause:.2f} s"
                for before, after, pause in zip(SIZES[:-1], SIZES[1:], pauses, strict=True)
            )
            print(f"{name:20}  {shown}  (a step: {1000 * step_s:.0f} ms)", flush=True)
    medians = {name: statistics.median(pauses) for name, pauses in found.items()}
    for name, median in medians.items():
        print(f"{name:20}  median {median:.2f} s, longest {max(found[name]):.2f} s")
    print(f"ratio {medians['stopped and resumed'] / medians['workers come and go']:.1f}")


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

    def restart(self, workers: int) -> None:
        """Have it keep its state and end, then go on with so many workers."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(WAIT_S)
        (self.folder / "team.json").unlink(missing_ok=True)
        self._begin(["--resume", str(self.folder)], workers)

    def end(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(WAIT_S)


Change = Callable[[Training, int], None]


def by_joining(training: Training, workers: int) -> None:
    """Have workers come or go."""
    ask_for(training.folder, workers)


def by_restarting(training: Training, workers: int) -> None:
    """Stop it, and go on."""
    training.restart(workers)


def measure(folder: Path, batch: int, change: Change) -> tuple[list[float], float]:
    """Return the pause at each change, and how long a step takes otherwise."""
    training = Training(folder, batch)
    windows = []
    try:
        training.wait_for(SIZES[0])
        quiet_s = time.time() - SETTLE_S
        for workers in SIZES[1:]:
            begin_s = time.time()
            change(training, workers)
            training.wait_for(workers)
            windows.append((begin_s, time.time()))
    finally:
        training.end()
    ends = step_ends(training.folder)
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
