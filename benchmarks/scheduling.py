"""How long jobs take under each policy, on workloads that nobody was tuned on.

    python benchmarks/scheduling.py families          # three families of workloads, all policies, ratio last
    python benchmarks/scheduling.py estimated         # the same with estimated knowledge
    python benchmarks/scheduling.py knob --plot out/knob.png
    python benchmarks/scheduling.py decisions         # what a decision takes
    python benchmarks/scheduling.py gavel             # against the figures of Gavel's own simulator
    python benchmarks/scheduling.py static            # doubling against the exact optimum of its own objective
    python benchmarks/scheduling.py scale             # 30,000 jobs

The families: Poisson arrivals at three levels of contention; arrivals, sizes and models sampled from Microsoft's Philly
cluster; Gavel's jobs on its mixed cluster. The last two read DOVETAIL_DATA and are left out where it is not set. Seeds
below 200 were looked at while tuning; the reported ones are 200 to 209. One core.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import msgspec
import numpy as np

from dovetail.charts.figure import save_figure
from dovetail.charts.policies import draw_knob
from dovetail.scheduler.cluster import Cluster
from dovetail.scheduler.job_table import JobTable, job_table
from dovetail.scheduler.policies.dovetail import DEFAULT_KNOB
from dovetail.scheduler.policies.max_min import MaxMin
from dovetail.scheduler.policy import Policy
from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.scheduler.view import Allocation, ClusterView
from dovetail.simulator import Outcome, simulate
from dovetail.simulator.knowledge import KnowledgeName, Truth
from dovetail.simulator.progress import Progress
from dovetail.simulator.rounds import OnlyInRounds
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
REPORTED_SEEDS = range(200, 210)
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
        print(f"\n{family}\n{'policy':12s} {'mean JCT s':>11s} {'p50':>9s} {'p99':>9s} {'makespan':>9s} restarts util")
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


def show_estimated(seeds: Iterable[int]) -> None:
    """Print how much of the gain over doubling is kept when work left and speeds are estimated; the share last."""
    kept = 0.0
    variants: dict[str, Callable[[Workload], Workload]] = {
        "kinds and losses": lambda workload: workload,
        "no kinds: nothing shared": lambda workload: _stripped(workload, kind=None),
        "no losses: sizes unknown": lambda workload: _stripped(workload, loss=None),
    }
    for title, change in variants.items():
        for contention in ("extreme", "moderate"):
            sums = np.zeros(4)
            for seed in seeds:
                workload = change(make_workload(contention=contention, seed=seed))
                for place, (name, knowledge) in enumerate(
                    (n, k) for n in ("doubling", "dovetail") for k in ("oracle", "estimated")
                ):
                    sums[place] += run(workload, name, knowledge).mean_jct_s  # type: ignore[arg-type]
            known, guessed, ours, ours_guessed = sums / len(list(seeds))
            share = (known - ours_guessed) / (known - ours)
            kept = kept or share
            print(
                f"{title:26s} {contention:9s} mean JCT s: doubling {known:6.0f} (estimated {guessed:6.0f})  "
                f"dovetail {ours:6.0f} (estimated {ours_guessed:6.0f})  kept {share:.0%}"
            )
    print(f"share of the gain over doubling kept with estimated knowledge: {kept:.2f}")


def _stripped(workload: Workload, **given: None) -> Workload:
    """Return a workload whose jobs do not say something."""
    jobs = tuple(msgspec.structs.replace(job, **given) for job in workload.jobs)
    return msgspec.structs.replace(workload, jobs=jobs)


def show_knob(seeds: Iterable[int], plot: Path | None) -> None:
    """Print and draw what the knob trades at the highest load; the span of the mean last."""
    knobs = [0.0, 0.12, 0.25, DEFAULT_KNOB, 0.5, 0.65, 0.8, 1.0]
    names = {"mean JCT": "mean_jct_s", "p99 JCT": "p99_jct_s", "makespan": "makespan_s", "restarts": "restarts"}
    workloads = [make_workload(seed=seed, with_loss=False) for seed in seeds]
    base = [run(workload, "doubling") for workload in workloads]
    curves: dict[str, list[float]] = {title: [] for title in names}
    for knob in knobs:
        found = [run(workload, "dovetail", knob=knob) for workload in workloads]
        for title, name in names.items():
            ratio = sum(getattr(one, name) for one in found) / sum(getattr(one, name) for one in base)
            curves[title].append(ratio)
        print(f"knob {knob:.2f}  " + "  ".join(f"{title} {values[-1]:.3f}" for title, values in curves.items()))
    if plot is not None:
        save_figure(draw_knob(knobs, curves, against="doubling", chosen=DEFAULT_KNOB), plot)
    print(f"mean from {min(curves['mean JCT']):.2f} to {max(curves['mean JCT']):.2f} of doubling's")


SIZES = (
    (80, "v100:4x6,p100:4x5,k80:4x5", 10),
    (1000, "v100:8x86,p100:8x85,k80:8x85", 3),
    (10_000, "v100:8x834,p100:8x833,k80:8x833", 1),
)
"""Jobs, nodes, and how many states are drawn."""


def show_decisions() -> None:
    """Print what one decision of each size takes, the slowest of ten on fresh states; the larger one last."""
    for count, nodes, seeds in SIZES:
        times = [_decision_s(count, nodes, seed) for seed in range(seeds)]
        workers = sum(group.workers * group.count for group in parse_nodes(nodes))
        print(
            f"{count} jobs on {workers} workers of 3 types: slowest decision {1000 * max(times):.1f} ms, "
            f"median {1000 * float(np.median(times)):.1f} ms"
        )


def _decision_s(count: int, nodes: str, seed: int) -> float:
    """Return the slowest of two decisions with `count` jobs there: all waiting, then with half of them running."""
    workload = make_workload(num_jobs=count, seed=seed, nodes=parse_nodes(nodes), with_loss=False)
    at_once = msgspec.structs.replace(
        workload, jobs=tuple(msgspec.structs.replace(job, submit_s=0.0) for job in workload.jobs)
    )
    watched = _FirstDecisions(make_policy("dovetail"))
    simulate(make_workload(num_jobs=3, nodes=parse_nodes(nodes), with_loss=False), make_policy("dovetail"), name="warm")
    with contextlib.suppress(StopIteration):
        simulate(at_once, watched, name="x")
    return max(watched.seconds)


class _FirstDecisions:
    """A policy that times another's first decisions and then stops the simulation."""

    def __init__(self, policy: Policy, *, most: int = 6) -> None:
        self.policy, self.most, self.seconds = policy, most, list[float]()

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Time the other's decision."""
        if len(self.seconds) == self.most:
            raise StopIteration
        started_s = time.perf_counter()
        found = self.policy.decide(view, now_s)
        self.seconds.append(time.perf_counter() - started_s)
        return found


def show_scale() -> None:
    """Print what 30,000 jobs take under fifo and doubling; the slower last."""
    slowest = 0.0
    for name in ("fifo", "doubling"):
        workload = make_workload(num_jobs=30_000, with_loss=False)
        started_s = time.perf_counter()
        simulate(workload, make_policy(name), name=name)
        took_s = time.perf_counter() - started_s
        slowest = max(slowest, took_s)
        print(f"{name:9s} 30,000 jobs on 64 workers, load above one: {took_s:.1f} s")
    print(f"slowest: {slowest:.1f} s")


class GavelFifo:
    """First in, first out by the rules of Gavel's own simulator, for comparison with its figures only.

    A job is bound to a type when it gets its turn: the last in the alphabet with a worker left, whether or not that has
    room for it, as long as some type has. When that type is full, a type drawn from those with room is struck off
    instead. A type given to too many is shared in turns, who has run least first.
    """

    def __init__(self) -> None:
        self.draw = random.Random(0)
        self.bound: dict[int, int] = {}
        self.served_s: dict[int, float] = {}
        self.last: list[int] = []
        self.last_s = 0.0
        self.known: tuple[int, ...] = ()

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Bind waiting jobs, then run on each type who has run least."""
        for row in self.last:
            self.served_s[row] = self.served_s.get(row, 0.0) + now_s - self.last_s
        rows = tuple(view.rows.tolist())
        sizes = {row: int(np.flatnonzero(view.speed[row].max(axis=0))[0]) for row in rows}
        if rows != self.known:
            self.known = rows
            self._bind(view, sizes)
        room = view.capacity.copy()
        chosen = []
        for row in sorted(self.bound, key=lambda row: (self.served_s.get(row, 0.0), row)):
            kind = self.bound[row]
            if sizes[row] <= room[kind] and view.speed[row, kind, sizes[row]] > 0:
                chosen.append((row, kind, sizes[row]))
                room[kind] -= sizes[row]
        self.last, self.last_s = [row for row, _, _ in chosen], now_s
        columns = np.array(chosen, np.int64).reshape(-1, 3)
        return Allocation(rows=columns[:, 0], types=columns[:, 1], workers=columns[:, 2])

    def _bind(self, view: ClusterView, sizes: dict[int, int]) -> None:
        """Let waiting jobs take the places of those that are done, then whatever is left."""
        room = view.capacity.astype(int).tolist()
        queue = [row for row in sizes if row not in self.bound]
        for row in sorted(self.bound):
            kind = self.bound[row]
            if row in sizes:
                room[kind] -= sizes[row]
                continue
            if queue and sizes[follower := queue.pop(0)] <= room[kind]:
                self.bound[follower] = kind
                room[kind] -= sizes[follower]
            del self.bound[row]
        left = [kind for kind in range(len(room)) if room[kind] > 0]
        while queue and left and any(room[kind] >= sizes[queue[0]] for kind in left):
            row = queue.pop(0)
            fitting = [kind for kind in left if room[kind] >= sizes[row]]
            self.bound[row] = left[-1]
            room[left[-1]] -= sizes[row]
            struck = fitting[self.draw.randrange(len(fitting))]
            if room[left[-1]] == 0:
                left.remove(struck)


GAVEL = {
    ("max_min_fairness", "FIFO"): (9.85, 53.33),
    ("max_min_fairness", "LAS, blind to types"): (5.20, 19.70),
    ("max_min_fairness", "max-min, type-aware"): (3.82, 17.11),
    ("minimize_makespan", "FIFO"): (47.25, 70.38),
}
"""Mean completion time and makespan in hours that Gavel's own simulator gives."""


def show_gavel() -> None:
    """Print our figures on Gavel's traces beside its own; the largest difference of the three on arrivals last."""
    folder = data_folder()
    if folder is None:
        print("DOVETAIL_DATA is not set")
        return
    policies: dict[str, Callable[[], Policy]] = {
        "FIFO": GavelFifo,
        "LAS, blind to types": lambda: MaxMin(knows_types=False),
        "max-min, type-aware": MaxMin,
    }
    worst = 0.0
    for (trace, title), (mean_h, makespan_h) in GAVEL.items():
        alphabetical = title == "FIFO"
        workload = read_gavel(
            folder / f"gavel/traces/{trace}.trace",
            speeds=folder / "gavel/steps_per_s.json",
            nodes=parse_nodes("k80:4x6,p100:4x4,v100:4x2" if alphabetical else MIXED),
            restart_s=0.0,
            round_s=ROUND_S,
        )
        found = simulate(workload, OnlyInRounds(policies[title](), round_s=ROUND_S), name=title).outcome
        ours = (found.mean_jct_s / 3600, found.makespan_s / 3600)
        off = [our / their - 1 for our, their in zip(ours, (mean_h, makespan_h), strict=True)]
        if trace == "max_min_fairness":
            worst = max(worst, *(abs(one) for one in off))
        print(
            f"{trace:17s} {title:20s} mean {ours[0]:6.2f} h (Gavel {mean_h:5.2f}, {off[0]:+.1%})  "
            f"makespan {ours[1]:6.2f} h (Gavel {makespan_h:5.2f}, {off[1]:+.1%})"
        )
        plain = simulate(workload, OnlyInRounds(make_policy("fifo"), round_s=ROUND_S), name="fifo").outcome
        if alphabetical:
            print(f"{'':17s} our own fifo         mean {plain.mean_jct_s / 3600:6.2f} h")
    print(f"largest difference on arrivals over time: {worst:.1%}")


def show_static() -> None:
    """Print doubling and +1 over the exact optimum of the sum of remaining times, all jobs there at once."""
    ratios: dict[str, list[float]] = {"doubling": [], "optimus": []}
    for seed in range(40):
        workload = make_workload(num_jobs=random.Random(seed).randint(4, 50), seed=seed, with_loss=False)
        jobs = tuple(msgspec.structs.replace(job, submit_s=0.0) for job in workload.jobs)
        table = job_table(msgspec.structs.replace(workload, jobs=jobs))
        sums = {name: _remaining_s(table, name) for name in ("exact", "doubling", "optimus")}
        for name, values in ratios.items():
            values.append(sums[name] / sums["exact"])
    for name, values in ratios.items():
        print(f"{name:9s} over exact: mean {np.mean(values):.4f}, worst {max(values):.4f}, best {min(values):.4f}")
    print(f"doubling over the optimum of its own objective: {np.mean(ratios['doubling']):.4f}")


def _remaining_s(table: JobTable, name: str) -> float:
    """Return the sum of remaining times after one decision with every job there."""
    cluster = Cluster(table)
    for row in range(len(table.jobs)):
        cluster.arrive(row)
    view = cluster.view(Truth(Progress(cluster)))
    chosen = make_policy(name).decide(view, 0.0)
    return float((table.work[chosen.rows] / table.speed[chosen.rows, chosen.types, chosen.workers]).sum())


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["families", "estimated", "knob", "decisions", "gavel", "static", "scale"])
    parser.add_argument("--seeds", type=int, default=len(REPORTED_SEEDS), help="how many of the reported seeds")
    parser.add_argument("--tuning", action="store_true", help="run on the seeds that tuning used instead")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--plot", type=Path, help="for `knob`: where to draw it")
    asked = parser.parse_args()
    seeds = (TUNING_SEEDS if asked.tuning else REPORTED_SEEDS)[: asked.seeds]
    commands: dict[str, Callable[[], None]] = {
        "families": lambda: show_families(seeds, asked.policies.split(",")),
        "estimated": lambda: show_estimated(seeds),
        "knob": lambda: show_knob(seeds, asked.plot),
        "decisions": show_decisions,
        "gavel": show_gavel,
        "static": show_static,
        "scale": show_scale,
    }
    commands[asked.what]()


if __name__ == "__main__":
    main()
