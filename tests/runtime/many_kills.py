"""Runs of the counting model in which processes of all roles die many times, and what must be true of them then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.sharded import ShardedRun
from dovetail.runtime.messages import Report
from dovetail.spec.run import Run
from dovetail.spec.run_sections import RunOptimizer, RunSaving
from tests.runtime.chaos import Chaos
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import assert_same_state, last_state, make_run, train
from tests.runtime.trainer.sharded.runs import train_sharded

ADAM = RunOptimizer(name="adam", learning_rate=0.01)
MODES = ("sync", "ssp", "async", "ring", "sharded")
SAMPLES = 6000
TIMEOUT_S = 800.0
MOST_IN_VAIN = 3
"""Generations in a row that are killed before a step: a run gives up after five, and a slow machine needs its time."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A run with many kills: who died, how many of them two at once, and how long it took."""

    names: list[str]
    two_at_once: int
    went_back: int
    """How often the run went back to a checkpoint, as a ring may."""
    seconds: float

    def of(self, role: str) -> int:
        """Return how many of a role died."""
        return sum(name.partition("-")[0] == role for name in self.names)


def counting_run(
    *, seconds: float = 4, workers: int = 2, optimizer: RunOptimizer = PLAIN, samples: int = 3000,
    until: Path | None = None, **how: Any,
) -> Run:  # fmt: skip
    """Return a run whose gradients are whole numbers: their sums are the same in any order."""
    return make_run(
        model=slow_counting(seconds * workers / samples, until=until),
        optimizer=optimizer,
        reduction="sum",
        samples=samples,
        workers=workers,
        **({"servers": 2, "patience_s": 5.0, "batch": 60} | how),
    )


def went_back(local: LocalRun) -> list[str]:
    """Return the events of a run that went back to a checkpoint."""
    return [event for event in local.events if "goes back" in event]


class NotForever:
    """Kills generations before they have made a step, but not so many in a row that a run gives up, as it should."""

    def __init__(self, chaos: Chaos) -> None:
        self._chaos = chaos
        self._generation, self._first_step, self._in_vain = -1, 0, 0

    def __call__(self, processes: ShardedRun, report: Report) -> None:
        """Kill somebody where it is time to."""
        if processes.generation != self._generation:
            self._generation, self._first_step = processes.generation, report.step
        if report.step > self._first_step:
            self._in_vain = 0
        if self._in_vain < MOST_IN_VAIN:
            before = len(self._chaos.killed)
            self._chaos(processes, report)
            self._in_vain += len(self._chaos.killed) > before


def sharded_under_kills(folder: Path, seed: int, *, kills: int = 17) -> Killed:
    """Train with rows over three workers while those are killed; the run goes back each time, and each sample counts.

    The model is slow until the last of them was killed: no kill comes too late.
    """
    begun_s = time.monotonic()
    over = folder / "over"
    chaos = Chaos(kills=kills, seed=seed, pause_s=1.0, two_at_once=0.25, over=over)
    saving = RunSaving(every_steps=5)
    run = counting_run(seconds=3.0 * kills, workers=3, samples=SAMPLES, until=over, checkpoint=saving)
    meanwhile = NotForever(chaos)
    processes = train_sharded(run, folder / "run", meanwhile=meanwhile, timeout_s=TIMEOUT_S)
    assert len(chaos.killed) == kills, chaos.killed
    assert_each_sample_counts_once(folder / "run")
    return Killed(chaos.killed, chaos.two_at_once, processes.generation, time.monotonic() - begun_s)


def train_under_kills(folder: Path, mode: str, seed: int, *, kills: int = 17) -> Killed:
    """Train while processes of any role are killed, a quarter of them two at once, and check what comes of it.

    No step may be repeated, and every sample counts once; in `sync`, with Adam, the state must be bit-equal to that of
    a run without kills. With its rows over the workers a run goes back each time.
    """
    if mode == "sharded":
        return sharded_under_kills(folder, seed, kills=kills)
    begun_s = time.monotonic()
    chaos = Chaos(kills=kills, seed=seed, pause_s=2.5 if mode == "ring" else 2.0, two_at_once=0.25)
    optimizer = ADAM if mode == "sync" else PLAIN
    kind = {"workers": 3, "dense": "ring"} if mode == "ring" else {"mode": mode}
    saving = RunSaving(every_s=3.0)
    run = counting_run(seconds=1.8 * kills, samples=SAMPLES, optimizer=optimizer, checkpoint=saving, **kind)
    local = train(run, folder / "run", meanwhile=chaos, timeout_s=TIMEOUT_S)
    seconds = time.monotonic() - begun_s
    assert len(chaos.killed) == kills, chaos.killed
    # Where all who hold the dense parameters of a ring are gone, those of the checkpoint are all there is.
    allowed = "no worker is left that holds the dense" if mode == "ring" else "nothing"
    assert [event for event in went_back(local) if allowed not in event] == [], local.events
    if mode == "sync":
        train(counting_run(seconds=1, samples=SAMPLES, optimizer=optimizer), folder / "whole", timeout_s=100)
        assert_same_state(last_state(folder / "run"), last_state(folder / "whole"))
    else:
        assert_each_sample_counts_once(folder / "run")
    return Killed(chaos.killed, chaos.two_at_once, len(went_back(local)), seconds)
