"""How long jobs take under each policy, on workloads that nobody was tuned on.

    python benchmarks/scheduling.py families          # three families of workloads, all policies, ratio last
    python benchmarks/scheduling.py estimated         # the same with estimated knowledge
    python benchmarks/scheduling.py knob --plot out/knob.png
    python benchmarks/scheduling.py decisions         # what a decision takes
    python benchmarks/scheduling.py gavel             # against the figures of Gavel's own simulator
    python benchmarks/scheduling.py static            # doubling against the exact optimum of its own objective

The families: Poisson arrivals at three levels of contention; arrivals, sizes and models sampled from Microsoft's Philly
cluster; Gavel's jobs on its mixed cluster. The last two read DOVETAIL_DATA and are left out where it is not set. Seeds
from 100 on were used for tuning, the reported ones are 0 to 9. One core.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import msgspec
import numpy as np

from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.simulator import Outcome, simulate
from dovetail.simulator.knowledge import KnowledgeName
from dovetail.simulator.traces.gavel import read_gavel
from dovetail.simulator.traces.make import CONTENTIONS, make_workload
from dovetail.simulator.traces.nodes import parse_nodes
from dovetail.simulator.traces.philly import elastic_workload
from dovetail.simulator.traces.table import TableJob, read_jobs
from dovetail.spec.workload import Workload

Make = Callable[[int], Workload]
MIXED = "v100:4x2,p100:4x4,k80:4x6"
PHILLY_NODES = "v100:4x16"
TUNING_SEEDS = range(100, 110)
REPORTED_SEEDS = range(10)
ROUND_S = 360.0


def data_folder() -> Path | None:
    """Return where the measured data lies, where that is said."""
    folder = os.environ.get("DOVETAIL_DATA")
    return Path(folder) if folder else None


def poisson(contention: str) -> Make:
    """Return workloads of Poisson arrivals at one level of contention."""
    return lambda seed: make_workload(contention=contention, seed=seed)  # type: ignore[arg-type]


def philly(rows: Sequence[TableJob], load: float) -> Make:
    """Return samples of the Philly cluster that ask for `load` of 64 workers."""
    return lambda seed: elastic_workload(rows, nodes=parse_nodes(PHILLY_NODES), load=load, seed=seed, stretch=10.0)


def mixed(folder: Path, *, elastic: bool) -> Make:
    """Return Gavel's 96 jobs in another order: its arrivals and cluster, its job types drawn anew by the seed."""

    def make(seed: int) -> Workload:
        traced = read_gavel(
            folder / "gavel/traces/max_min_fairness.trace",
            speeds=folder / "gavel/steps_per_s.json",
            nodes=parse_nodes(MIXED),
            restart_s=10.0,
            round_s=ROUND_S,
            elastic=elastic,
        )
        draw = random.Random(seed)
        drawn = draw.sample(traced.jobs, len(traced.jobs))
        jobs = tuple(
            msgspec.structs.replace(job, id=there.id, submit_s=there.submit_s)
            for job, there in zip(drawn, traced.jobs, strict=True)
        )
        return msgspec.structs.replace(traced, jobs=jobs)

    return make


def families() -> dict[str, Make]:
    """Return every family that can be made here, the highest load of each first."""
    found = {f"poisson {contention}": poisson(contention) for contention in reversed(CONTENTIONS)}
    folder = data_folder()
    if folder is not None:
        rows = read_jobs(folder / "chronus/philly_mix1.csv")
        found |= {f"philly load {load}": philly(rows, load) for load in (1.1, 0.7)}
        found |= {"gavel elastic": mixed(folder, elastic=True), "gavel sizes": mixed(folder, elastic=False)}
    return found


def run(workload: Workload, name: str, knowledge: KnowledgeName = "oracle", knob: float | None = None) -> Outcome:
    """Return the outcome of one policy on one workload."""
    return simulate(workload, make_policy(name, knob=knob), name=name, knowledge=knowledge).outcome


FIGURES = ("mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "restarts", "utilization")


def averages(make: Make, names: Iterable[str], seeds: Iterable[int]) -> dict[str, dict[str, float]]:
    """Return each policy's figures, the mean over the seeds."""
    sums: dict[str, dict[str, float]] = {}
    seeds = list(seeds)
    for seed in seeds:
        workload = make(seed)
        for name in names:
            outcome = run(workload, name)
            entry = sums.setdefault(name, dict.fromkeys(FIGURES, 0.0))
            for figure in FIGURES:
                entry[figure] += getattr(outcome, figure) / len(seeds)
    return sums


def show_families(seeds: Iterable[int], names: Sequence[str]) -> None:
    """Print every family under every policy, and how `dovetail` compares; the headline ratio last."""
    headline = ""
    for family, make in families().items():
        found = averages(make, names, seeds)
        print(
            f"\n{family}\n{'policy':12s} {'mean JCT s':>11s} {'p50':>9s} {'p99':>9s} {'makespan':>9s} {'restarts':>8s} util"
        )
        for name, entry in sorted(found.items(), key=lambda item: item[1]["mean_jct_s"]):
            print(
                f"{name:12s} {entry['mean_jct_s']:11.0f} {entry['p50_jct_s']:9.0f} {entry['p99_jct_s']:9.0f} "
                f"{entry['makespan_s']:9.0f} {entry['restarts']:8.0f} {entry['utilization']:.2f}"
            )
        ours, fixed = found["dovetail"], min(entry["mean_jct_s"] for name, entry in found.items() if "fixed" in name)
        for other in ("doubling", "optimus", "max-min"):
            theirs = found[other]
            ratios = {figure: ours[figure] / max(theirs[figure], 1e-9) for figure in FIGURES[:5]}
            print(
                f"  dovetail / {other:9s} mean {ratios['mean_jct_s']:.2f}  p99 {ratios['p99_jct_s']:.2f}  "
                f"makespan {ratios['makespan_s']:.2f}  restarts {ratios['restarts']:.2f}"
            )
        print(f"  dovetail / best fixed-n mean {ours['mean_jct_s'] / fixed:.2f}")
        headline = headline or f"{ours['mean_jct_s'] / found['doubling']['mean_jct_s']:.2f}"
    print(f"\nmean completion time of dovetail over doubling at the highest load: {headline}")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["families"])
    parser.add_argument("--seeds", type=int, default=len(REPORTED_SEEDS), help="how many of the reported seeds")
    parser.add_argument("--tuning", action="store_true", help="run on the seeds that tuning used instead")
    parser.add_argument("--policies", default=",".join(POLICIES))
    asked = parser.parse_args()
    seeds = (TUNING_SEEDS if asked.tuning else REPORTED_SEEDS)[: asked.seeds]
    show_families(seeds, asked.policies.split(","))


if __name__ == "__main__":
    main()
