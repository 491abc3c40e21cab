"""CTR-DNN over three hosts: how fast through a cluster's launcher, over the local launcher on the same links.

    python benchmarks/many_hosts.py --sides local,ssh            # as root, on two quiet cores
    python benchmarks/many_hosts.py --sides local,ray

The hosts are network namespaces with cables of 10 Gbit/s. Coordinator and a server are on the first, a worker is on
each of the three; tensors go over TCP on every side. Sides take turns, and what a cluster has running (Ray's own
processes on its three nodes) runs beside both of them. Speed counts from a fifth of the samples,
and from when all workers work, to the last. Then a
host is killed in a run of three times the length, with all that runs on it, and the run goes on: its longest pause is
told, and how long until all workers work again. The ratio comes last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
os.environ["OMP_NUM_THREADS"] = "1"  # as Ray sets it for what it starts: the same for every side

from dovetail.runtime.messages import Report
from dovetail.spec.run import Run, RunData, RunFaults, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer
from host_sides import NAMES, SIDES, LosesHosts, opened
from testbed import Hosts

LINK_BYTES_PER_S = 1.25e9
WARM_PART = 0.2
DATA = {"num_slots": 26, "num_multi_valued": 2, "num_dense": 13, "rows_per_slot": 4000}
MODEL = {"num_rows": 104_000, "width": 16, "hidden": [400, 400, 400]}


class Progress:
    """When a run came how far."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.seen: list[tuple[float, int]] = []
        self.whole_s = 0.0
        """When all workers had done something: some launchers have them ready one after the other."""

    def __call__(self, report: Report) -> None:
        """Take in a report."""
        if not self.whole_s and sum(worker.samples > 0 for worker in report.workers) == len(NAMES):
            self.whole_s = time.monotonic()
        if not self.seen or report.samples > self.seen[-1][1]:
            self.seen.append((time.monotonic(), report.samples))

    def samples_per_s(self, total: int) -> float:
        """Return the speed after the first fifth, with all workers."""
        warm = [at for at in self.seen if at[1] >= WARM_PART * total and at[0] >= self.whole_s]
        (begun_s, first), (ended_s, last) = warm[0], warm[-1]
        return (last - first) / (ended_s - begun_s)

    def longest_pause_s(self, after_s: float) -> float:
        """Return the longest time without a sample more, from a moment on."""
        times = [after_s, *(at_s for at_s, _ in self.seen if at_s > after_s)]
        return max(late - early for early, late in pairwise(times))


def make_run(samples: int, batch: int) -> Run:
    """Return the run, with a worker for each host."""
    return Run(
        model=RunModel(name="ctr-dnn", options=MODEL),
        data=RunData(options=DATA | {"num_samples": samples}),
        training=RunTraining(batch=batch, seed=1),
        optimizer=RunOptimizer(name="adagrad", learning_rate=0.02),
        servers=RunServers(count=1, host_bytes=1 << 26),
        workers=[RunWorker(name="worker", count=len(NAMES))],
        faults=RunFaults(patience_s=5.0),
    )


def killed_in_mid_run(side: LosesHosts, run: Run, folder: Path, samples: int) -> str:
    """Return what became of a run whose host `far` is taken away when a third is done."""
    progress, killed_s, whole_s = Progress(), 0.0, 0.0

    def on_report(report: Report) -> None:
        nonlocal killed_s, whole_s
        progress(report)
        if not killed_s and report.samples > samples / 3:
            killed_s = time.monotonic()
            side.kill("far")
        elif killed_s and any(worker.state != "working" for worker in report.workers):
            whole_s = 0.0
        elif killed_s and not whole_s:
            whole_s = time.monotonic()

    side.train(run, folder, on_report)
    side.restore("far")
    again = f"all workers again after {whole_s - killed_s:.1f} s" if whole_s else "a worker was missing to the end"
    return (
        f"{progress.seen[-1][1]:,} of {samples:,} samples, longest pause {progress.longest_pause_s(killed_s):.1f} s, "
        f"{again}"
    )


def main() -> None:
    """Run all sides and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default="local,ssh", help=f"of {', '.join(SIDES)}; the first is compared with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=262_144)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--no-kill", action="store_true")
    words = parser.parse_args()
    names, samples = words.sides.split(","), words.samples
    run = make_run(samples, words.batch)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="many-") as place:
        folder = Path(place)
        with Hosts(list(NAMES), rates=[LINK_BYTES_PER_S] * len(NAMES)) as hosts, opened(names, hosts, folder) as sides:
            for number in range(words.rounds):
                for name in names if number % 2 == 0 else names[::-1]:
                    progress = Progress()
                    sides[name].train(run, folder / f"{name}-{number}", progress)
                    speeds[name].append(progress.samples_per_s(samples))
                    print(f"round {number + 1}  {name:<6} {speeds[name][-1]:>9,.0f} samples/s", flush=True)
            for name, side in sides.items() if not words.no_kill else ():
                if not isinstance(side, LosesHosts):  # the hosts of the local launcher are one machine
                    continue
                longer = make_run(3 * samples, words.batch)
                said = killed_in_mid_run(side, longer, folder / f"{name}-killed", 3 * samples)
                print(f"host `far` killed  {name:<6} {said}", flush=True)
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    for name in names[1:]:
        print(f"{name} over {names[0]}: {medians[name] / medians[names[0]]:.3f}x")


if __name__ == "__main__":
    main()
