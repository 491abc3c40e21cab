"""How long jobs take under each policy, on workloads that nobody was tuned on.

    python benchmarks/scheduling.py families          # every family, the policies side by side, ratio last
    python benchmarks/scheduling.py sensitivity       # restarts, loads, and each constant that is left
    python benchmarks/scheduling.py estimated         # what is kept of the gain when speeds and work are learnt
    python benchmarks/scheduling.py newcomers         # short jobs in bursts, some fail at once
    python benchmarks/scheduling.py batches           # jobs with several batch sizes: dovetail beside goodput
    python benchmarks/scheduling.py knob --plot out/knob.png
    python benchmarks/scheduling.py decisions         # what a decision takes
    python benchmarks/scheduling.py gavel             # against the figures of Gavel's own simulator
    python benchmarks/scheduling.py static            # doubling against the exact optimum of its own objective
    python benchmarks/scheduling.py scale             # 30,000 jobs

The families: Poisson arrivals of made-up jobs at three levels of contention; jobs that may use the whole cluster;
arrivals, sizes and models sampled from Microsoft's Philly cluster; Gavel's jobs on its mixed cluster; and measured
speed curves (benchmarks/clusters.py) at four loads, in bursts and with failing nodes, of kinds that were held out while
the policy was developed. All but the first two read DOVETAIL_DATA and are left out where it is not set. Seeds below 200
were looked at on the way; the reported ones are 200 and up. One core.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import numpy as np

import clusters
from dovetail.charts.figure import save_figure
from dovetail.scheduler.baselines.max_min import MaxMin
from dovetail.scheduler.cluster import Cluster
from dovetail.scheduler.default import values as weighing
from dovetail.scheduler.default.policy import DEFAULT_KNOB
from dovetail.scheduler.job_table import JobTable, job_table
from dovetail.scheduler.policy import Policy
from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray
from dovetail.simulator import Outcome, simulate
from dovetail.simulator.knowledge import KnowledgeName, Truth
from dovetail.simulator.metrics import Trial
from dovetail.simulator.progress import VirtualJobs
from dovetail.simulator.traces.make import CONTENTIONS, arrivals_s, loss_curve, make_workload
from dovetail.simulator.traces.read import parse_nodes, read_gavel
from dovetail.simulator.traces.table import TableJob, read_jobs
from dovetail.spec.job import BatchSize, Job
from dovetail.spec.workload import NodeGroup, Workload
from testbed.pictures import draw_knob
from testbed.schedules import OnlyInRounds, elastic_workload

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
    """Return every family that can be made here, the highest load of the made-up ones first."""
    found = {f"poisson {contention}": poisson(contention) for contention in reversed(CONTENTIONS)}
    found |= {f"wide load {load}": clusters.wide(load=load) for load in (1.5, 0.5)}
    folder = data_folder()
    if folder is not None:
        rows = read_jobs(folder / "chronus/philly_mix1.csv")
        held_out = functools.partial(clusters.measured, folder, half="held out")
        found |= {f"measured load {load}": held_out(load=load) for load in (2.0, 1.5, 1.0, 0.5)}
        found |= {
            "measured bursts": held_out(load=1.0, pattern="bursty"),
            "measured failures": held_out(load=1.0, failures=True),
            "gavel elastic": mixed(folder, elastic=True),
            "gavel sizes": mixed(folder, elastic=False),
            "philly load 1.1": philly(rows, 1.1),
        }
    return found


def run(
    workload: Workload,
    name: str,
    knowledge: KnowledgeName = "oracle",
    knob: float | None = None,
    noise: float = 0.03,
) -> Outcome:
    """Return the outcome of one policy on one workload."""
    policy = make_policy(name, knob=knob)
    return simulate(workload, policy, name=name, knowledge=knowledge, noise=noise).outcome


FIGURES = ("mean_jct_s", "p99_jct_s", "makespan_s", "restarts")
MEAN_ONLY = "dovetail, knob 0"


def figures(outcome: Outcome) -> FloatArray:
    """Return mean, p99, makespan and restarts."""
    return np.array([getattr(outcome, figure) for figure in FIGURES], float)


def averages(make: Make, names: Iterable[str], seeds: Iterable[int]) -> dict[str, FloatArray]:
    """Return each policy's figures, the mean over the seeds; `dovetail` at knob 0 too."""
    seeds = list(seeds)
    sums: dict[str, FloatArray] = {}
    for seed in seeds:
        workload = make(seed)
        for name in (MEAN_ONLY, *names):
            known = run(workload, "dovetail", knob=0.0) if name == MEAN_ONLY else run(workload, name)
            sums[name] = sums.get(name, np.zeros(len(FIGURES))) + figures(known) / len(seeds)
    return sums


def show_families(seeds: Iterable[int], names: Sequence[str], only: str) -> None:
    """Print every family under every policy as ratios to doubling; the headline ratio last."""
    headline, furthest = "", 0.0
    for family, make in families().items():
        if only not in family:
            continue
        found = averages(make, names, seeds)
        base = found["doubling"]
        print(f"\n{family}: doubling {base[0]:.0f} s, p99 {base[1]:.0f} s, all {base[2]:.0f} s, {base[3]:.0f} restarts")
        for name, entry in sorted(found.items(), key=lambda item: item[1][0]):
            ratios = entry / np.maximum(base, 1)
            print(
                f"  {name:17s} mean {ratios[0]:.3f}  p99 {ratios[1]:.2f}  makespan {ratios[2]:.2f}  "
                f"restarts {ratios[3]:.2f}"
            )
        others = {name: entry for name, entry in found.items() if "dovetail" not in name}
        least = found[MEAN_ONLY][0] / min(entry[0] for entry in others.values()) - 1
        furthest = max(furthest, least)
        better = [name for name, entry in others.items() if (entry < found["dovetail"]).all()]
        print(f"  knob 0 against the least mean of the others: {least:+.1%}; better in all four: {better or 'none'}")
        headline = headline or f"{found['dovetail'][0] / base[0]:.3f}"
    print(f"\nknob 0 above the least mean of the others, at worst: {furthest:.1%}")
    print(f"mean completion time of dovetail over doubling at the highest load: {headline}")


def show_sensitivity(seeds: Iterable[int]) -> None:
    """Print the mean over doubling's as restarts, loads and the constant that is left change; the largest move last."""
    folder = data_folder()
    for restart_s in (5.0, 30.0, 120.0, 250.0):
        makes = {"wide": clusters.wide(load=1.0, restart_s=restart_s)}
        if folder is not None:
            makes["measured"] = clusters.measured(folder, half="held out", load=1.5, restart_s=restart_s)
        print(f"restart {restart_s:3.0f} s  " + "  ".join(_against_doubling(*item, seeds) for item in makes.items()))
    for load in (0.5, 1.0, 1.5, 2.0):
        makes = {"wide": clusters.wide(load=load)}
        if folder is not None:
            makes["measured"] = clusters.measured(folder, half="held out", load=load)
        print(f"load {load:3.1f}  " + "  ".join(_against_doubling(*item, seeds) for item in makes.items()))
    moved = 0.0
    for title, make in (("poisson extreme", poisson("extreme")), ("wide load 1.0", clusters.wide(load=1.0))):
        workloads = [make(seed) for seed in seeds]
        usual, means = weighing.CRITICAL, {}
        for factor in (0.5, 1.0, 2.0):
            weighing.CRITICAL = usual * factor
            means[factor] = float(np.mean([run(workload, "dovetail").mean_jct_s for workload in workloads]))
        weighing.CRITICAL = usual
        moves = {factor: mean / means[1.0] - 1 for factor, mean in means.items() if factor != 1.0}
        moved = max(moved, *(abs(move) for move in moves.values()))
        print(f"{title}: what a critical job counts, halved {moves[0.5]:+.1%}, doubled {moves[2.0]:+.1%}")
    print(f"largest move of the mean by a constant: {moved:.1%}")


def _against_doubling(title: str, make: Make, seeds: Iterable[int]) -> str:
    """Return the default's four figures over doubling's in words."""
    found = averages(make, ("dovetail", "doubling"), seeds)
    ratios = found["dovetail"] / np.maximum(found["doubling"], 1)
    at_zero = found[MEAN_ONLY][0] / found["doubling"][0]
    return f"{title} {ratios[0]:.3f}/{ratios[1]:.2f}/{ratios[2]:.2f}/{ratios[3]:.2f} (knob 0 {at_zero:.3f})"


def show_estimated(seeds: Iterable[int]) -> None:
    """Print what is kept of the gain over doubling when work left and speeds are estimated; the least share last."""
    makes: dict[str, tuple[Make, float]] = {"made up, 3% noise": (poisson("extreme"), 0.03)}
    folder = data_folder()
    if folder is not None:
        held_out = clusters.measured(folder, half="held out", load=1.5, with_loss=True)
        makes |= {"measured, 3% noise": (held_out, 0.03), "measured, 10% noise": (held_out, 0.10)}
    variants: dict[str, Callable[[Workload], Workload]] = {
        "kinds and losses": lambda workload: workload,
        "no kinds": lambda workload: _stripped(workload, kind=None),
        "no losses": lambda workload: _stripped(workload, loss=None),
    }
    least = 1.0
    for title, (make, noise) in makes.items():
        for variant, change in variants.items():
            sums = np.zeros(3)
            for seed in seeds:
                workload = change(make(seed))
                sums += [
                    run(workload, "doubling").mean_jct_s,
                    run(workload, "dovetail").mean_jct_s,
                    run(workload, "dovetail", "estimated", noise=noise).mean_jct_s,
                ]
            known, ours, guessed = sums
            share = (known - guessed) / (known - ours)
            least = min(least, share)
            print(
                f"{title:20s} {variant:17s} over doubling: knowing {ours / known:.3f}, "
                f"estimating {guessed / known:.3f}, kept {share:.0%}",
                flush=True,
            )
    print(f"least share of the gain over doubling kept with estimated knowledge: {least:.2f}")


NEARLY = 0.7
"""The share of its work from which a job counts as nearly done."""


def newcomers(workers: int) -> Make:
    """Return an afternoon of trials on few workers: bursts of jobs of unlike speeds, three in ten fail at once.

    Sizes are from seconds to minutes (40 s in the median), against a start of 8 s and a resize of 2 s. No two are of
    one kind, so nobody knows anything of a job that has not run; one that runs shows its loss.
    """

    def make(seed: int) -> Workload:
        draw = random.Random(f"newcomers {seed}")
        jobs = []
        for number, submit_s in enumerate(arrivals_s("bursty", count=60, mean_gap_s=70.0 / workers, draw=draw)):
            pace = 10.0 ** draw.uniform(1.0, 4.0)
            seconds = 0.2 if draw.random() < 0.3 else 40.0 * math.exp(draw.gauss(0.0, 1.2))
            speed = {"cpu": {"1": pace, "2": 1.7 * pace}}
            loss = loss_curve(seconds * pace, draw) if seconds > 1.0 else None
            jobs.append(Job(id=f"j{number:02d}", submit_s=submit_s, work=seconds * pace, speed=speed, loss=loss))
        nodes = (NodeGroup(type="cpu", workers=workers),)
        return Workload(nodes=nodes, jobs=tuple(jobs), restart_s=8.0, resize_s=2.0)

    return make


def show_newcomers(seeds: Iterable[int]) -> None:
    """Print how jobs fare of which little is known, and how often one that is nearly done is stopped for another."""
    for workers in (1, 2, 4):
        for knowledge in ("oracle", "estimated"):
            sums = np.zeros(len(FIGURES) + 1)
            for seed in seeds:
                workload = newcomers(workers)(seed)
                trial = simulate(workload, make_policy("dovetail"), name="dovetail", knowledge=knowledge)
                stops = _stops_when_nearly_done(workload, trial)
                sums += np.array([*figures(trial.outcome), stops]) / len(list(seeds))
            print(
                f"{workers} workers, {knowledge:9s}  mean JCT {sums[0]:5.0f} s  p99 {sums[1]:5.0f} s  makespan "
                f"{sums[2]:5.0f} s  restarts {sums[3]:4.1f}  stops past {NEARLY:.0%} {sums[4]:4.1f}",
                flush=True,
            )


def _stops_when_nearly_done(workload: Workload, trial: Trial) -> int:
    """Return how often a job lost all its workers with little left, by what its workers had done until then."""
    finish_s = {job.id: job.finish_s for job in trial.outcome.jobs}
    stops = 0
    for job in workload.jobs:
        changes = [change for change in trial.changes if change.job == job.id]
        done, begins_s, speed, since_s = 0.0, 0.0, 0.0, -math.inf
        for change, after in itertools.zip_longest(changes, changes[1:]):
            done += max(0.0, change.t_s - begins_s) * speed
            if change.workers:
                resized_s = workload.resize_s if since_s == change.t_s else None  # taken and given in one moment
                begins_s = max(begins_s, change.t_s) + resized_s if resized_s else change.t_s + workload.restart_s
                speed = job.speed[change.type][str(change.workers)]
                continue
            begins_s, speed, since_s = max(begins_s, change.t_s), 0.0, change.t_s
            goes_on = after is not None and after.t_s == change.t_s
            stops += not goes_on and change.t_s < finish_s[job.id] and done >= NEARLY * job.work
    return stops


def show_batches(seeds: Iterable[int]) -> None:
    """Print dovetail and goodput on jobs that may use larger batches at some loss of efficiency; the ratio last."""
    sums = np.zeros(2)
    for seed in seeds:
        workload = _with_batches(clusters.wide(load=1.0)(seed))
        sums += [run(workload, name, knob=0.0).mean_jct_s for name in ("dovetail", "goodput")]
    print(f"mean JCT s: dovetail {sums[0]:.0f}, goodput {sums[1]:.0f} (sums over seeds)")
    print(f"dovetail over goodput where batch sizes can be chosen: {sums[0] / sums[1]:.2f}")


def _with_batches(workload: Workload) -> Workload:
    """Return a workload whose jobs may use twice and four times their batch.

    A larger batch hides more of the communication: with b times the batch, w workers go at b times the steps of w / b.
    By the gradient's noise of n own batches a sample is then worth (n + 1) / (n + b).
    """
    jobs = []
    for position, job in enumerate(workload.jobs):
        noise = (1.0, 4.0, 16.0)[position % 3]
        larger = {}
        for times in (2, 4):
            table = {
                name: {
                    size: times * np.interp(int(size) / times, [int(count) for count in curve], list(curve.values()))
                    for size in curve
                    if int(size) >= times
                }
                for name, curve in job.speed.items()
            }
            larger[str(256 * times)] = BatchSize(efficiency=(noise + 1) / (noise + times), speed=table)
        jobs.append(msgspec.structs.replace(job, efficiency=larger))
    return msgspec.structs.replace(workload, jobs=tuple(jobs))


def _stripped(workload: Workload, **given: None) -> Workload:
    """Return a workload whose jobs do not say something."""
    jobs = tuple(msgspec.structs.replace(job, **given) for job in workload.jobs)
    return msgspec.structs.replace(workload, jobs=jobs)


def show_knob(seeds: Iterable[int], plot: Path | None) -> None:
    """Print and draw what the knob trades at the highest load; the span of the mean last."""
    knobs = [0.0, 0.1, DEFAULT_KNOB, 0.3, 0.5, 0.75, 1.0]
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
            f"{count} jobs on {workers} workers of 3 types: slowest decision {1000 * max(times):.1f} ms of CPU, "
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
        started_s = time.process_time()  # one thread: what a decision takes where nothing else runs
        found = self.policy.decide(view, now_s)
        self.seconds.append(time.process_time() - started_s)
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
    view = cluster.view(Truth(VirtualJobs(cluster)))
    chosen = make_policy(name).decide(view, 0.0)
    return float((table.work[chosen.rows] / table.speed[chosen.rows, chosen.types, chosen.workers]).sum())


COMMANDS = (
    "families",
    "sensitivity",
    "estimated",
    "newcomers",
    "batches",
    "knob",
    "decisions",
    "gavel",
    "static",
    "scale",
)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--seeds", type=int, default=len(REPORTED_SEEDS), help="how many of the reported seeds")
    parser.add_argument("--tuning", action="store_true", help="run on the seeds that tuning used instead")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--only", default="", help="for `families`: those with this in their name")
    parser.add_argument("--plot", type=Path, help="for `knob`: where to draw it")
    asked = parser.parse_args()
    seeds = (TUNING_SEEDS if asked.tuning else REPORTED_SEEDS)[: asked.seeds]
    commands: dict[str, Callable[[], None]] = {
        "families": lambda: show_families(seeds, asked.policies.split(","), asked.only),
        "sensitivity": lambda: show_sensitivity(seeds),
        "newcomers": lambda: show_newcomers(seeds),
        "batches": lambda: show_batches(seeds),
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
