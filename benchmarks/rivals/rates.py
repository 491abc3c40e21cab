"""How fast a training loop runs: the median over windows in which the machine was ours, after a warm-up."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WINDOW_S = 1.0
MOST_OTHERS = 0.2
"""A window counts while other processes use less than this many cores."""
FEWEST_WINDOWS = 3

RunSteps = Callable[[int], None]
"""Runs so many steps and returns when they are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rate over some steps, and how many cores processes other than ours used meanwhile."""

    samples_per_s: float
    other_cores: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all sides take."""
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=1024, help="of all processes together")
    parser.add_argument("--optimizer", choices=("adagrad", "adam"), default="adagrad")
    parser.add_argument("--seconds", type=float, default=10, help="how long to measure on a quiet machine")
    parser.add_argument("--patience", type=float, default=30, help="how much longer while others are busy")
    parser.add_argument("--warm-up", type=float, default=4)


def windows(run_steps: RunSteps, options: argparse.Namespace, root: int | None = None) -> Iterator[Window]:
    """Warm up, then yield one window after the other until the quiet ones last `seconds`, or patience is at an end.

    Ours are all processes below `root`, by default this one.
    """
    root = root or os.getpid()
    steps = _warm_up(run_steps, options.warm_up)
    quiet_s = 0.0
    end = time.perf_counter() + options.seconds + options.patience
    while quiet_s < options.seconds and time.perf_counter() < end:
        others, start = others_s(root), time.perf_counter()
        run_steps(steps)
        took_s = time.perf_counter() - start
        other_cores = (others_s(root) - others) / took_s
        yield Window(samples_per_s=steps * options.batch / took_s, other_cores=other_cores)
        quiet_s += took_s if other_cores < MOST_OTHERS else 0.0
        steps = _window_steps(took_s / steps)


def print_result(name: str, windows_found: Iterable[Window], **details: Any) -> None:
    """Print the result as one line of JSON, last; with too few quiet windows all of them count."""
    found = list(windows_found)
    quiet = [window for window in found if window.other_cores < MOST_OTHERS]
    counted = quiet if len(quiet) >= FEWEST_WINDOWS else found
    result = {
        "name": name,
        "samples_per_s": round(statistics.median(window.samples_per_s for window in counted), 1),
        **details,
        "quiet": counted is quiet,
        "windows": [round(window.samples_per_s) for window in found],
        "other_cores": [round(window.other_cores, 2) for window in found],
    }
    print(json.dumps(result), flush=True)


def others_s(root: int) -> float:
    """Return the processor time that all but `root` and the processes below it have used so far."""
    total = sum(int(Path("/proc/stat").read_text().split()[place]) for place in (1, 2, 3))  # user, nice, system
    times: dict[int, tuple[int, int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        times[int(file.parent.name)] = (int(words[1]), sum(map(int, words[11:15])))
    ours = sum(used for pid, (_, used) in times.items() if _is_below(pid, root, times))
    return (total - ours) / os.sysconf("SC_CLK_TCK")


def _warm_up(run_steps: RunSteps, seconds: float) -> int:
    """Run for so long at least, twice or more; return how many steps make a window."""
    steps, rounds = 1, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or rounds < 2:
        start = time.perf_counter()
        run_steps(steps)
        steps = min(4 * steps, _window_steps((time.perf_counter() - start) / steps))
        rounds += 1
    return steps


def _window_steps(step_s: float) -> int:
    """Return how many steps make a window."""
    return max(1, round(WINDOW_S / step_s))


def _is_below(pid: int, root: int, times: dict[int, tuple[int, int]]) -> bool:
    """Say whether a process is `root` or was started by it, or by one that was."""
    while pid in times:
        if pid == root:
            return True
        pid = times[pid][0]
    return False
