"""Machines that are killed under runs over SSH or Ray: whatever is lost, every sample counts once.

    python benchmarks/host_kills.py --side ssh            # 30 kills in three runs, as root: about five minutes
    python benchmarks/host_kills.py --side ray --kills 10

The hosts are network namespaces. Coordinator and a server are on the first, workers on all three. Again and again one
of the other two is killed, with all that runs on it, and comes back a few seconds later; now and then both are. The
model counts (gradient 1 a sample), and at the end the tables are compared with the data. A row for each run, the total
last.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
os.environ["OMP_NUM_THREADS"] = "1"

from dovetail.runtime.messages import Report
from host_sides import NAMES, SIDES, LosesHosts, opened
from testbed import Hosts
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run

AWAY_S = 4.0
BACK_S = 3.0
"""How long a host is away, and then there before the next is killed."""


class Kills:
    """Kills hosts and brings them back: call it with every report."""

    def __init__(self, side: LosesHosts, draw: random.Random, kills: int, over: Path) -> None:
        """Get ready for so many kills; the run may end after the last."""
        self._side, self._draw, self._left, self.over = side, draw, kills, over
        self._away: tuple[str, ...] = ()
        self._next_s: float | None = None
        self.done = 0

    def __call__(self, report: Report) -> None:
        """Do what is due."""
        now_s = time.monotonic()
        if self._next_s is None:
            self._next_s = now_s + BACK_S if report.step >= 2 else None
        elif now_s >= self._next_s and self._away:
            self.restore()
            self._next_s = time.monotonic() + BACK_S
        elif now_s >= self._next_s and self._left > 0:
            both = self._left > 1 and self._draw.random() < 0.2
            self._away = NAMES[1:] if both else (self._draw.choice(NAMES[1:]),)
            for name in self._away:
                self._side.kill(name)
            self.done, self._left = self.done + len(self._away), self._left - len(self._away)
            self._next_s = time.monotonic() + AWAY_S
        elif now_s >= self._next_s:
            self.over.touch()

    def restore(self) -> None:
        """Have everyone back who is away."""
        for name in self._away:
            self._side.restore(name)
        self._away = ()


def train_under_kills(side: LosesHosts, killing: Kills, place: Path, number: int) -> int:
    """Train a run while hosts are killed, check it, and return how many were."""
    model = slow_counting(0.004, until=killing.over)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", samples=200_000, workers=3, patience_s=2.0)
    begun_s, folder = time.monotonic(), place / f"run-{number}"
    side.train(run, folder, killing)
    killing.restore()
    assert_each_sample_counts_once(folder)
    print(f"| {number} | {killing.done} | {time.monotonic() - begun_s:.0f} | every sample once |", flush=True)
    return killing.done


def main() -> int:
    """Kill hosts under runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=[name for name in SIDES if name != "local"], default="ssh")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    total = 0
    print("| run | kills | seconds | found |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch, Hosts(NAMES) as hosts:
        place = Path(scratch)
        with opened([arguments.side], hosts, place) as sides:
            side = sides[arguments.side]
            assert isinstance(side, LosesHosts)
            for number in range(arguments.runs):
                kills = arguments.kills * (number + 1) // arguments.runs - arguments.kills * number // arguments.runs
                killing = Kills(side, random.Random(arguments.seed + number), kills, place / f"over-{number}")
                total += train_under_kills(side, killing, place, number)
    print(f"{total} hosts killed over {arguments.side}, nothing lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
