"""Whether the layout that Dovetail chooses is the fastest, and whether it takes what was predicted.

    python benchmarks/promise.py                                   # ctr-dnn, here
    python benchmarks/promise.py --models ctr-dnn,own --seconds 8 --batch 8192 --rows 1000000
    python benchmarks/promise.py --layouts "one process,sharded"   # those whose names hold a word
    python benchmarks/promise.py --models ctr-dnn,dlrm,two-tower,own --seconds 3 --out promise.json
    python benchmarks/promise.py --hosts                           # three namespaces over SSH, as root

For each model: it is profiled as `dovetail run` does it, the fastest plan is made, and then the chosen layout and up to
eight plain ones are really run, each anew: one process on the cores and on a GPU, servers with one worker and with
several, workers that own the rows, two stages. Those of more processes than there are cores take turns, and are run and
priced all the same. What a layout does is seen over `--seconds` in which its pace holds. With `--hosts`, workers are on
three hosts of two types, over SSH, and layouts are servers with workers of each, and stages over both.

Prints what each was predicted to do and did; then the regret (the chosen one's speed over the best), the median and
worst error, and Kendall's tau of the order; at the end those of all models. `own` is a module of this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from dovetail.cost import evaluate
from dovetail.errors import DovetailError
from dovetail.orchestrate.choosing import planned_for
from dovetail.orchestrate.hosts import profiled_on
from dovetail.orchestrate.profiling import profiled_here
from dovetail.orchestrate.run_files import model_run
from dovetail.orchestrate.short_runs import short_run
from dovetail.planner.demands import Demands
from dovetail.runtime.launch.hosts.fleet import Fleet, fleet_of
from dovetail.runtime.planned.from_plan import Machine, layout_in_words, placed
from dovetail.spec import Place, Plan, Problem, Stage
from dovetail.spec.run import Run

MODELS = {"ctr-dnn": "ctr-dnn", "dlrm": "dlrm", "two-tower": "matchnet", "own": "promise:own"}
STARTING_S = 25.0
"""What a run may take beyond its steady seconds."""


class Own(nn.Module):
    """A user's own module: a bag for each slot, beside the numbers, and a tower."""

    def __init__(self, num_slots: int, num_dense: int, rows: int, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.rows, self.inputs = rows, num_slots * width
        self.bags = nn.EmbeddingBag(rows, width, mode="sum", sparse=True, include_last_offset=True)
        self.tower = nn.Sequential(nn.Linear(self.inputs + num_dense, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        """Return a score for each sample."""
        bags = self.bags(torch.remainder(ids, self.rows), offsets).view(-1, self.inputs)
        scores: Tensor = self.tower(torch.cat([bags, dense], dim=1))
        return scores.squeeze(1)


def own(schema: Any, num_rows: int = 100_000, width: int = 16) -> nn.Module:
    """Return the module for some data."""
    return Own(schema.num_slots, schema.num_dense, num_rows, width)


# -- the layouts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A layout by name: what a plan would say."""

    name: str
    place: Place
    stages: tuple[Stage, ...]
    servers: int = 0
    readers: int = 0


def plain_layouts(problem: Problem, machine: Machine) -> Iterator[Layout]:
    """Yield eight plain layouts at most."""
    last, cores = len(problem.layers) - 1, machine.cores
    kinds = {resource.kind: resource.name for resource in problem.resources}
    cpu, gpu = kinds["cpu"], kinds.get("gpu") if machine.gpus else None

    def whole(resource: str, units: int) -> tuple[Stage, ...]:
        return (Stage(resource=resource, first_layer=0, last_layer=last, units=units),)

    yield Layout("one process on all cores", "local", whole(cpu, cores), readers=1)
    yield Layout("one process on one core", "local", whole(cpu, 1), readers=1)
    if gpu is not None:
        yield Layout("one process on gpu", "local", whole(gpu, 1), readers=2)
    yield Layout("a server, a worker on cpu", "servers", whole(cpu, 1), servers=1, readers=1)
    several = max(2, (cores - 2) // 2)
    yield Layout(f"a server, {several} workers on cpu", "servers", whole(cpu, several), servers=1, readers=several)
    if gpu is None:
        yield Layout("two servers, a worker on cpu", "servers", whole(cpu, 1), servers=2, readers=1)
        yield Layout("two servers, two workers on cpu", "servers", whole(cpu, 2), servers=2, readers=2)
    if gpu is not None:
        yield Layout("a server, a worker on gpu", "servers", whole(gpu, 1), servers=1, readers=1)
    if cores > 1:
        yield Layout("sharded over 2 workers", "sharded", whole(cpu, 2))
    tables = [number for number, layer in enumerate(problem.layers) if layer.kind == "embedding"]
    if tables and tables[-1] < last:
        units, rest = max(1, cores // 4), gpu or cpu
        stages = two_stages(tables[-1], last, (cpu, units), (rest, 1))
        yield Layout(f"two stages: rows on cpu, rest on {rest}", "servers", stages, servers=1, readers=units)


def two_stages(cut: int, last: int, one: tuple[str, int], other: tuple[str, int]) -> tuple[Stage, ...]:
    """Return two stages on units of types, cut behind a layer."""
    return (
        Stage(resource=one[0], first_layer=0, last_layer=cut, units=one[1]),
        Stage(resource=other[0], first_layer=cut + 1, last_layer=last, units=other[1]),
    )


def layouts_on_hosts(problem: Problem, _: Machine) -> Iterator[Layout]:
    """Yield eight layouts over hosts of two types, whose servers are on the machine that launches."""
    last = len(problem.layers) - 1
    first, second = sorted({name for layer in problem.layers for name in layer.on})
    for name, units, servers in [
        (first, 1, 1),
        (first, 2, 1),
        (second, 1, 1),
        (second, 2, 1),
        (second, 4, 1),
        (second, 2, 2),
    ]:
        stages = (Stage(resource=name, first_layer=0, last_layer=last, units=units),)
        yield Layout(f"{servers} servers, {units} workers on {name}", "servers", stages, servers=servers)
    tables = [number for number, layer in enumerate(problem.layers) if layer.kind == "embedding"]
    for one, other in ((first, second), (second, first)):
        if tables and tables[-1] < last:
            stages = two_stages(tables[-1], last, (one, 1), (other, 1))
            yield Layout(f"two stages: rows on {one}, rest on {other}", "servers", stages, servers=1)


def plan_of(problem: Problem, layout: Layout) -> Plan:
    """Return a layout as a plan, with what the cost model says of it."""
    found = evaluate(
        problem, layout.stages, split_stages=True, place=layout.place, servers=layout.servers, readers=layout.readers
    )
    return Plan(
        method="given", stages=layout.stages, samples_per_s=found.samples_per_s, cost_per_hour=found.cost_per_hour,
        cost=found.cost, lower_bound=0.0, optimal=False, seconds=0.0, batch=problem.training.batch,
        place=layout.place, servers=layout.servers or None, readers=layout.readers or None, cores=found.cores,
        parts=found.parts,
    )  # fmt: skip


def key_of(plan: Plan) -> tuple[Any, ...]:
    """Return what tells layouts apart that run in other ways."""
    stages = tuple((stage.resource, stage.first_layer, stage.last_layer, stage.units) for stage in plan.stages)
    return plan.place, stages, plan.servers or 0


# -- one model ---------------------------------------------------------------------------------------------------------


def of_model(name: str, given: argparse.Namespace, fleet: Fleet | None = None) -> dict[str, Any]:
    """Return what was predicted of each layout of a model, and what it did."""
    rows = {} if name == "two-tower" else {"num_rows": given.rows}
    run = model_run(
        MODELS.get(name, name),
        model_options=rows,
        data="clicks",
        data_options={},
        samples=given.samples,
        batch=given.batch,
        seed=0,
    )
    machine, begun_s = Machine.this() if fleet is None else fleet.machine, time.monotonic()
    run = run if fleet is None else fleet.settled(run)
    problem = profiled_here(run, machine, tell=say) if fleet is None else profiled_on(fleet, run, tell=say)
    profiled_s = time.monotonic() - begun_s
    chosen = planned_for(problem, Demands(), tell=say)
    plans: list[tuple[str, Plan]] = [("chosen", chosen)]
    refused: list[dict[str, str]] = []
    for layout in (plain_layouts if fleet is None else layouts_on_hosts)(problem, machine):
        if not any(word in layout.name for word in given.layouts):
            continue
        try:
            plan = plan_of(problem, layout)
        except DovetailError as error:
            refused.append({"layout": layout.name, "why": str(error)})
            continue
        if key_of(plan) == key_of(chosen):
            plans[0] = (f"chosen: {layout.name}", chosen)
        else:
            plans.append((layout.name, plan))
    found = []
    for label, plan in plans:
        row = measured(label, plan, run, problem, machine, given.seconds, fleet)
        (refused if "why" in row else found).append(row)
    return {"model": name, "profiled_s": profiled_s, "layouts": found, "refused": refused, **summary(found)}


def measured(
    label: str, plan: Plan, run: Run, problem: Problem, machine: Machine, seconds: float, fleet: Fleet | None
) -> dict[str, Any]:
    """Return what a layout was predicted to do and did, or why it did not run."""
    try:
        # A plain layout that takes a core more than there is runs all the same: its threads take turns.
        planned = placed(run, msgspec.structs.replace(plan, cores=None), problem, machine)
        words = layout_in_words(planned)
        say(f"running {label}: {words} ...")
        seen = short_run(
            planned.run, problem.training.batch, seconds=seconds, limit_s=seconds + STARTING_S, fleet=fleet
        )
    except DovetailError as error:
        return {"layout": label, "why": str(error)}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if seen is None:
        return {"layout": label, "why": f"no two steps in {seconds + STARTING_S:.0f} s"}
    rate = problem.training.batch / seen.seconds_per_batch
    return {
        "layout": label,
        "in_words": words,
        "predicted_samples_per_s": plan.samples_per_s,
        "measured_samples_per_s": rate,
        "ratio": rate / plan.samples_per_s,
        "spread": seen.error,
        "holds": seen.holds,
        "cores_busy": seen.cores,
        "cost_per_hour": plan.cost_per_hour,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the regret of the first, which was chosen; errors; and how far the order is the predicted one."""
    if not rows:
        return {}
    rates = [(row["predicted_samples_per_s"], row["measured_samples_per_s"]) for row in rows]
    errors = [abs(predicted / real - 1) for predicted, real in rates]
    best = max(real for _, real in rates)
    is_chosen_there = rows[0]["layout"].startswith("chosen")
    return {
        "regret": rates[0][1] / best if is_chosen_there else None,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "kendalls_tau": kendalls_tau(rates),
    }


def kendalls_tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return (agreeing - differing) / all pairs of layouts; None where there is but one."""
    signs = [
        (one[0] > other[0]) - (one[0] < other[0]) == (one[1] > other[1]) - (one[1] < other[1])
        for one, other in itertools.combinations(pairs, 2)
    ]
    return sum(1 if same else -1 for same in signs) / len(signs) if signs else None


# -- printing ----------------------------------------------------------------------------------------------------------


def say(words: str) -> None:
    """Say what is done, on stderr."""
    print(words, file=sys.stderr, flush=True)


def print_model(found: dict[str, Any]) -> None:
    """Print a row a layout, then what they come to."""
    print(f"\n{found['model']}: profiled in {found['profiled_s']:.0f} s")
    print(f"{'layout':<48}{'predicted':>14}{'measured':>14}{'ratio':>8}{'spread':>8}{'cores':>7}")
    for row in found["layouts"]:
        print(
            f"{row['layout'][:47]:<48}{row['predicted_samples_per_s']:>14,.0f}{row['measured_samples_per_s']:>14,.0f}"
            f"{row['ratio']:>7.2f}x{row['spread']:>8.1%}{row['cores_busy']:>7.1f}"
        )
    for row in found["refused"]:
        print(f"{row['layout'][:47]:<48}not run: {row['why']}")
    if "median_error" not in found:
        return
    tau, regret = (None if found[key] is None else f"{found[key]:.2f}" for key in ("kendalls_tau", "regret"))
    print(
        f"regret {regret or '-'} (chosen over the best measured); error median {found['median_error']:.1%}, "
        f"worst {found['worst_error']:.1%}; Kendall's tau {tau or '-'}"
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="ctr-dnn", help=f"of {','.join(MODELS)}, or any that `dovetail run` takes")
    parser.add_argument("--layouts", default="", help="words of the names of plain layouts; absent: all")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each layout, after its first steps")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=100_000, help="of the tables, over all slots")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--hosts", action="store_true", help="workers on three namespaces over SSH, as root")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    given = parser.parse_args()
    given.layouts = given.layouts.split(",")
    begun_s = time.monotonic()
    with ExitStack() as things:
        fleet = things.enter_context(on_hosts()) if given.hosts else None
        here = Machine.this() if fleet is None else fleet.machine
        machine, found = {"cores": here.cores, "gpus": here.gpus}, []
        for name in given.models.split(","):
            found.append(of_model(name, given, fleet))
            print_model(found[-1])
            if given.out is not None:
                given.out.write_text(json.dumps({"machine": machine, "batch": given.batch, "models": found}, indent=1))
    print_all(found, time.monotonic() - begun_s)


@contextmanager
def on_hosts() -> Iterator[Fleet]:
    """Have three hosts, namespaces that SSH reaches: one of a type, two of another."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.runtime.launch.hosts.ssh_hosts import Machines, three_machines

    with tempfile.TemporaryDirectory() as folder, three_machines(Path(folder)) as machines:
        first, *others = machines.file.hosts
        types = [msgspec.structs.replace(host, type="cpu-2") for host in others]
        file = msgspec.structs.replace(machines.file, hosts=[first, *types])
        named = Machines(machines.hosts, machines.servers, machines.folder, machines.runs, file)
        with fleet_of(str(named.write())) as fleet:
            yield fleet


def print_all(found: Sequence[dict[str, Any]], seconds: float) -> None:
    """Print what all models come to."""
    rows = [row for each in found for row in each["layouts"]]
    if not rows:
        return
    errors = [abs(row["predicted_samples_per_s"] / row["measured_samples_per_s"] - 1) for row in rows]
    regrets = [each["regret"] for each in found if each.get("regret") is not None]
    taus = [each["kendalls_tau"] for each in found if each.get("kendalls_tau") is not None]
    print(f"\nall in {seconds / 60:.1f} min: {len(rows)} layouts of {len(found)} models")
    print(
        f"worst regret {min(regrets, default=math.nan):.2f}; error median {statistics.median(errors):.1%}, "
        f"worst {max(errors):.1%}; least Kendall's tau {min(taus, default=math.nan):.2f}"
    )


if __name__ == "__main__":
    main()
