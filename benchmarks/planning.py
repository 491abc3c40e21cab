"""How long the exact planner takes to find and prove the cheapest plan, and what other methods would have paid.

    python benchmarks/planning.py                 # exact beside brute force
    python benchmarks/planning.py --methods       # every method: cost over the optimum, and time
    python benchmarks/planning.py --seeds 20      # more instances of each size
    python benchmarks/planning.py --binding --seeds 1 --first-seed 1000   # limits, links, memory, sites, machines

Every figure is the processor time of one core (thread counts are set to one before anything is imported), from the
parsed problem to the plan, compilation excluded; so others on the machine change little. Brute force runs where
types^layers <= 1,000,000 and says how many plans it would have to price elsewhere. The last line is a ratio: brute
force's time over the exact planner's on the largest size that both can do, the worst baseline's cost over the optimum
on the four example models, or, with `--binding`, the worst gap after 10 s.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import time
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import msgspec

from dovetail.cost import evaluate
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.cheapest_route import Route
from dovetail.planner.compile import compile_kernels
from dovetail.planner.demands import Demands
from dovetail.planner.exact import OPTIMAL_WITHIN, CheapestSearch
from dovetail.planner.layouts.families import hourly_prices
from dovetail.planner.methods import METHODS, RL_METHODS, plan_with
from dovetail.spec import Beside, Plan, Problem, SharedMachine, read_problem
from dovetail.spec.synthetic import synthetic_problem

SIZES = [(5, 2), (8, 4), (9, 4), (16, 2), (16, 8), (16, 16), (16, 64), (64, 16), (300, 16)]
METHOD_SIZES = [(5, 2), (10, 4), (16, 16), (20, 64)]
MODELS = ["ctr-dnn", "matchnet", "2emb", "nce"]
BINDING = [
    ("limits", 300, 16),
    ("own links", 300, 16),
    ("memory", 300, 16),
    ("sites", 300, 16),
    ("own links", 2000, 16),
    ("own links", 2000, 64),
    ("machines", 16, 8),
    ("machines", 64, 8),
    ("machines", 300, 16),
    ("machines", 2000, 64),
]
LIMITED_SIZES = [(9, 4), (16, 8), (16, 16), (16, 64)]


def timed(problem: Problem, method: str = "exact") -> Plan:
    """Return the method's plan; `plan.seconds` is what it took."""
    return plan_with(method, problem, Demands(), clock=time.process_time)


def with_binding_limits(problem: Problem) -> Problem | None:
    """Return the problem with 60% of the units that its cheapest plan uses of each type, where that leaves a plan."""
    used: dict[str, int] = {}
    for stage in timed(problem).stages:
        used[stage.resource] = used.get(stage.resource, 0) + stage.units
    if max(used.values()) < 2:
        return None
    resources = tuple(
        msgspec.structs.replace(resource, limit=max(1, int(0.6 * used[resource.name])))
        if resource.name in used
        else resource
        for resource in problem.resources
    )
    limited = msgspec.structs.replace(problem, resources=resources)
    try:
        timed(limited)
    except NoPlanError:
        return None
    return limited


def report(title: str, problems: list[Problem]) -> float | None:
    """Print a row for problems of one size; return brute force's time over the exact planner's, where it can run."""
    plans = [timed(problem) for problem in problems]
    seconds = [plan.seconds for plan in plans]
    proven = sum(plan.optimal for plan in plans)
    brute, ratio = "", None
    try:
        checked = [timed(problem, "brute-force") for problem in problems[:3]]
        worst = max(abs(plan.cost / other.cost - 1) for plan, other in zip(plans, checked, strict=False))
        brute_s = statistics.median(plan.seconds for plan in checked)
        ratio = brute_s / statistics.median(seconds[:3])
        brute = f"{brute_s * 1e3:10.1f} ms, same cost to {worst:.0e}"
    except PlanError as error:
        brute = str(error).split("(")[0].replace("brute force would have to price", "refuses:")
    print(
        f"{title:24}{statistics.median(seconds) * 1e3:10.1f} ms{max(seconds) * 1e3:10.1f} ms"
        f"{proven:5d}/{len(plans)}   {brute}"
    )
    return ratio


def print_speed(seeds: int) -> None:
    """Print how long exact planning takes, size by size."""
    print(f"{'layers x types':24}{'exact median':>13}{'worst':>13}{'proven':>8}   brute force (median of 3)")
    ratios = []
    for num_layers, num_types in SIZES:
        ratio = report(f"{num_layers} x {num_types}", synthetic(num_layers, num_types, range(seeds)))
        if ratio is not None:
            ratios.append((num_types**num_layers, ratio))
    for num_layers, num_types in LIMITED_SIZES:
        candidates = map(with_binding_limits, synthetic(num_layers, num_types, range(10 * seeds)))
        problems = [problem for problem, _ in zip(filter(None, candidates), range(seeds), strict=False)]
        report(f"{num_layers} x {num_types}, limits bind", problems)
    print(f"brute force / exact, on the largest size both can do: {max(ratios)[1]:.0f}x")


def synthetic(num_layers: int, num_types: int, seeds: range) -> list[Problem]:
    """Return problems of one size."""
    return [
        synthetic_problem(num_layers=num_layers, num_types=num_types, seed=seed, min_samples_per_s=20_000.0)
        for seed in seeds
    ]


class WatchedSearch(CheapestSearch):
    """A search that remembers when it met its first plan."""

    first_s: float | None = None

    def _learn(self, rate: float, route: Route | None) -> None:
        super()._learn(rate, route)
        if self.first_s is None and self.best_route is not None:
            self.first_s = self.clock()


def binding_problem(family: str, num_layers: int, num_types: int, seed: int) -> Problem:
    """Return a problem of a family in which something binds; half of the links are missing in all of them."""
    problem = synthetic_problem(
        num_layers=num_layers,
        num_types=num_types,
        seed=seed,
        min_samples_per_s=20_000.0,
        limit_share=0.5,
        link_share=0.5,
        num_sites=3 if family == "sites" else 0,
    )
    draw = random.Random(seed)
    if family == "own links":
        links = tuple(
            msgspec.structs.replace(
                link, bytes_per_s=10 ** draw.uniform(9.1, 10.1), latency_s=10 ** draw.uniform(-4.7, -4.0)
            )
            for link in problem.links
        )
        return msgspec.structs.replace(problem, links=links)
    if family == "memory":
        resources = tuple(
            msgspec.structs.replace(resource, memory_bytes=10 ** draw.uniform(8.0, 10.0))
            for resource in problem.resources
        )
        return msgspec.structs.replace(problem, resources=resources)
    if family == "machines":
        return on_machines(problem, draw)
    return problem


def on_machines(problem: Problem, draw: random.Random) -> Problem:
    """Return the problem on machines that all units share, with readers, servers, feeding threads and full pipelines.

    The stages of the cheapest plan with nothing beside them, with readers and servers, are a plan of it for sure: it
    has their speed, or less, for a floor, and machines with little more than their cores and accelerators.
    """
    layers = tuple(
        msgspec.structs.replace(
            layer, kind="embedding" if position == 0 else "fc", weight_bytes=0.0, optimizer_bytes=0.0
        )
        for position, layer in enumerate(problem.layers)
    )
    step_s = problem.training.batch / problem.min_samples_per_s
    cpus = problem.cpu_types
    others = [resource.name for resource in problem.resources if resource.name not in cpus]
    stages = timed(problem).stages
    servers, readers = draw.randint(1, 6), draw.randint(1, 6)
    beside = Beside(
        read_core_s=step_s * readers * draw.uniform(0.5, 1.0),
        host_cores={name: draw.randint(1, 2) for name in others},
        micro_batch=max(1, problem.training.batch // draw.choice([64, 256, 1024])),
        step_s=0.02 * step_s,
        server_core_s=step_s * servers * draw.uniform(0.5, 1.0),
        client_s={resource.name: step_s * draw.uniform(0.1, 1.0) for resource in problem.resources},
        client_parallel={resource.name: draw.uniform(0.8, 1.0) for resource in problem.resources},
    )
    free = msgspec.structs.replace(problem, layers=layers, beside=beside)
    known = evaluate(free, stages, place="servers", servers=servers, readers=readers)
    used: dict[str, int] = {}
    for stage in stages:
        used[stage.resource] = used.get(stage.resource, 0) + stage.units
    resources = tuple(  # cores beside stages are units of the cheapest of kind cpu
        msgspec.structs.replace(resource, limit=None) if resource.name in cpus else resource
        for resource in free.resources
    )
    count = 4
    machine = SharedMachine(
        name="host",
        cores=math.ceil(draw.uniform(1.0, 1.3) * known.cores / count) + 2,
        units={name: math.ceil(draw.uniform(1.0, 1.3) * used.get(name, 0) / count) for name in others},
        count=count,
    )
    hosted = msgspec.structs.replace(free, resources=resources, machines=(machine,))
    fits = evaluate(hosted, stages, place="servers", servers=servers, readers=readers)
    if fits.violations and any("units of" in each or "cores" in each for each in fits.violations):
        return hosted.with_floor(0.0)
    return hosted.with_floor(known.samples_per_s * draw.uniform(0.7, 1.0))


def searched(problem: Problem, within_s: float) -> tuple[float | None, float, float | None]:
    """Return the seconds to the first plan, the gap at the end, and the seconds to the proof where there was one."""
    began = time.process_time()
    search = WatchedSearch(
        hourly_prices(problem, Demands()),
        min_samples_per_s=problem.min_samples_per_s,
        clock=time.process_time,
        deadline_s=began + within_s,
    )
    try:
        found = search.run()
    except PlanError:
        return None, math.inf, None
    seconds = time.process_time() - began
    if found is None:
        return None, 0.0, seconds
    gap = found.rate / found.rate_bound - 1
    first_s = None if search.first_s is None else search.first_s - began
    return first_s, gap, seconds if gap <= OPTIMAL_WITHIN else None


def print_binding(seeds: range, words: list[str]) -> None:
    """Print how soon there is a plan, how near it is after 10 s and when it is proven, where demands bind."""
    print(f"{'family, layers x types':34}{'seed':>6}{'first plan':>12}{'gap at 10 s':>13}{'proof':>10}")
    worst = 0.0
    for family, num_layers, num_types in BINDING:
        if not any(word in family for word in words):
            continue
        for seed in seeds:
            problem = binding_problem(family, num_layers, num_types, seed)
            first_s, gap, proof_s = searched(problem, 10.0)
            worst = max(worst, gap)
            if proof_s is None and gap < math.inf:
                _, _, proof_s = searched(problem, 30.0)
            first = "none" if first_s is None else f"{first_s:.2f} s"
            proof = "> 30 s" if proof_s is None else f"{proof_s:.2f} s"
            title = f"{family}, {num_layers} x {num_types}"
            print(f"{title:34}{seed:6d}{first:>12}{gap:13.2e}{proof:>10}", flush=True)
    print(f"worst gap after 10 s: {worst:.2%}")


def print_methods(seeds: int) -> None:
    """Print what every method pays over the optimum, and how long it takes, size by size and model by model."""
    for num_layers, num_types in METHOD_SIZES:
        print_method_rows(f"{num_layers} layers x {num_types} types", synthetic(num_layers, num_types, range(seeds)))
    problems = [read_problem(Path("examples/problems") / f"{name}.toml") for name in MODELS]
    worst = print_method_rows("the four example models", problems)
    print("HeterPS reports a baseline at 4.12x the cost of its own plan (on its own models and machines).")
    print(f"worst baseline / optimum, on the four example models: {worst:.2f}x")


def print_method_rows(title: str, problems: list[Problem]) -> float:
    """Print a row a method; return the worst ratio of a method that does not learn."""
    print(f"\n{title}, {len(problems)} problems: cost over the optimum, and seconds")
    optima = [timed(problem) for problem in problems]
    worst = 0.0
    for method in METHODS:
        ratios, seconds, reasons = [], [], []
        for problem, optimum in zip(problems, optima, strict=True):
            try:
                plan = timed(problem, method)
            except PlanError as error:
                reasons.append(error.message)
            else:
                ratios.append(plan.cost / optimum.cost)
                seconds.append(plan.seconds)
        if not ratios:
            print(f"  {method:12} none: {reasons[0]}", flush=True)
            continue
        if method not in ("exact", *RL_METHODS):
            worst = max(worst, *ratios)
        without = f"   {len(reasons)} without a plan" if reasons else ""
        print(
            f"  {method:12} median {statistics.median(ratios):8.4f}   worst {max(ratios):8.4f}"
            f"   {statistics.median(seconds):9.4f} s{without}",
            flush=True,
        )
    return worst


def main() -> None:
    """Print the table that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", action="store_true")
    parser.add_argument("--binding", action="store_true")
    parser.add_argument("--families", default="", help="words of the families' names, with --binding; absent: all")
    arguments = parser.parse_args()
    compile_kernels(clock=time.perf_counter)
    if arguments.binding:
        searched(binding_problem("limits", 20, 4, 0), 10.0)  # compiles what only limits and machines need
        searched(binding_problem("machines", 8, 3, 0), 10.0)
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        print_binding(seeds, arguments.families.split(","))
    elif arguments.methods:
        print_methods(arguments.seeds)
    else:
        print_speed(arguments.seeds)


if __name__ == "__main__":
    main()
