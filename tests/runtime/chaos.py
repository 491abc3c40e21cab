"""Kills at random moments, the same for the same seed as far as moments can be."""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.messages import Report
from tests.runtime.runs import kill


class Chaos:
    """Kills a process now and then: call it with every report of a run."""

    def __init__(
        self,
        *,
        kills: int,
        seed: int,
        names: Sequence[str] | None = None,
        pause_s: float = 1.5,
        two_at_once: float = 0.0,
        over: Path | None = None,
    ) -> None:
        """Kill `kills` times, processes of these names (absent: any), `pause_s` apart on average.

        At least the part `two_at_once` of them come two at a time. The file `over` is made after the last one.
        """
        self._random = random.Random(seed)
        self._names, self._pause_s, self._over = names, pause_s, over
        pairs = math.ceil(two_at_once * kills / 2)
        self._left = [2] * pairs + [1] * (kills - 2 * pairs)
        """How many are killed at each moment to come."""
        self._random.shuffle(self._left)
        self._next_s = 0.0
        self.killed: list[str] = []
        self.two_at_once = 0
        """How many of them died at the same moment as another."""

    def __call__(self, local: LocalRun, report: Report) -> None:
        """Kill somebody where it is time to: mostly while the run goes on, now and then while it goes back."""
        now_s = time.monotonic()
        if not self._next_s:
            if report.samples:
                self._next_s = now_s
            return
        if not self._left or now_s < self._next_s or (report.state != "running" and self._random.random() < 0.9):
            return
        names = [name for name in self._names or sorted(local.children) if local.children[name].how_it_ended() is None]
        wanted = self._left[-1]
        if len(names) < wanted:
            return  # one of them is about to be back
        for name in self._random.sample(names, wanted):
            kill(local, name, signal.SIGKILL)
            self.killed.append(name)
        self._left.pop()
        self.two_at_once += wanted if wanted > 1 else 0
        if not self._left and self._over is not None:
            self._over.touch()
        self._next_s = now_s + self._pause_s * self._random.uniform(0.2, 1.8)
