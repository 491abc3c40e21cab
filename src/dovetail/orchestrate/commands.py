"""Commands as functions of the same names, for programs and notebooks; they take what the command line takes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dovetail.errors import SpecError

if TYPE_CHECKING:
    from dovetail.profiler.profile import Profile
    from dovetail.runtime.planned.from_plan import Tell
    from dovetail.scheduler.policy import Policy
    from dovetail.simulator.knowledge import KnowledgeName
    from dovetail.simulator.metrics import Outcome
    from dovetail.spec import Place
    from dovetail.spec.plan import Plan
    from dovetail.spec.problem import Problem
    from dovetail.spec.workload import Workload

SAMPLES = 45_840_617
"""Of the public click log: how many training will see where nobody says, and the data have no end."""


def _quietly(_: str) -> None:
    """Say nothing."""


def plan(
    problem: Problem | str | Path,
    *,
    method: str = "exact",
    min_samples_per_s: float | None = None,
    finish_in: str | None = None,
    max_cost_per_hour: float | None = None,
    max_stages: int | None = None,
    split_stages: bool = False,
    spot: bool = False,
    model: Literal["full", "paper"] = "full",
    time_limit_s: float = 30.0,
    seed: int = 0,
) -> Plan:
    """Return which layers to run on which type, on how many units, for the least money at the speed you need.

    `problem` is what `profile` returned, or a file: TOML or JSON. With `max_cost_per_hour` it is the fastest plan for
    so many USD/h. `finish_in` ("6h") is another way to say `min_samples_per_s`. With `model="paper"` machines and what
    runs beside the layers are left out. The same as `dovetail plan`.
    """
    from dovetail.catalogue import read_problem_with, users_catalogue  # noqa: PLC0415 - compilers, when it is called
    from dovetail.planner.compile import compile_kernels  # noqa: PLC0415
    from dovetail.planner.demands import Demands  # noqa: PLC0415
    from dovetail.planner.methods import Options, check_method, plan_with  # noqa: PLC0415
    from dovetail.planner.plan import fastest_plan  # noqa: PLC0415
    from dovetail.units import parse_duration_s  # noqa: PLC0415

    if min_samples_per_s is not None and finish_in is not None:
        raise SpecError(
            "plan() has min_samples_per_s and finish_in", hint="give one of them: both say how fast it has to be"
        )
    if isinstance(problem, str | Path):
        problem = read_problem_with(users_catalogue(()), Path(problem), spot=spot)
    if model == "paper":
        problem = problem.as_in_paper()
    if finish_in is not None:
        min_samples_per_s = problem.training.total_samples / parse_duration_s(finish_in)
    if min_samples_per_s is not None:
        problem = problem.with_floor(min_samples_per_s)
    demands = Demands(
        max_cost_per_hour=max_cost_per_hour,
        max_stages=max_stages,
        split_stages=split_stages,
        time_limit_s=time_limit_s,
    )
    options = Options(seed=seed)
    check_method(method, options)
    compile_kernels(clock=time.perf_counter)
    if max_cost_per_hour is not None:
        made = fastest_plan(problem, demands, clock=time.perf_counter)
    else:
        made = plan_with(method, problem, demands, clock=time.perf_counter, options=options)
    return msgspec.structs.replace(made, spot=spot)


def profile(
    model: str,
    data: str = "clicks",
    *,
    batch: int = 1024,
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    optimizer: str | None = None,
    workers: int = 1,
    usd_per_hour: Mapping[str, float] | None = None,
    resources: Sequence[str] = (),
    network_gb_per_s: float | None = None,
    row_cache: int | None = None,
    samples: int | None = None,
    min_samples_per_s: float = 0.0,
    seed: int = 0,
    short_runs_s: float = 30.0,
    places: Sequence[Place] = ("local", "servers", "sharded"),
    tell: Tell = _quietly,
) -> Problem:
    """Measure a model on this machine, and return the problem that `plan` takes.

    Beside the layers, that is what runs beside them, and layouts as a whole, for which short runs have `short_runs_s`;
    only layouts with their rows in one of `places` are measured, and planned for.

    `resources` are types of the catalogue, such as "aws:g5.xlarge", that are estimated. Types of this machine stand
    beside them where `usd_per_hour` says what a unit of theirs costs. `samples` are those of the data unless said
    otherwise. The same as `dovetail profile`.
    """
    return measured_profile(
        model,
        data,
        batch=batch,
        model_options=model_options,
        data_options=data_options,
        optimizer=optimizer,
        workers=workers,
        usd_per_hour=usd_per_hour,
        resources=resources,
        network_gb_per_s=network_gb_per_s,
        row_cache=row_cache,
        samples=samples,
        min_samples_per_s=min_samples_per_s,
        seed=seed,
        short_runs_s=short_runs_s,
        places=places,
        tell=tell,
    ).problem


PLACES: tuple[Place, ...] = ("local", "servers", "sharded")


def checked_places(words: Sequence[str]) -> tuple[Place, ...]:
    """Return where rows may be, as people say it; all places for no words."""
    for word in words:
        if word not in PLACES:
            raise SpecError(f"--place is `{word}`", hint=f"rows may be: {', '.join(PLACES)}")
    return tuple(place for place in PLACES if place in words) or PLACES


def measured_profile(
    model: str,
    data: str,
    *,
    batch: int,
    model_options: Mapping[str, Any] | None,
    data_options: Mapping[str, Any] | None,
    optimizer: str | None,
    workers: int,
    usd_per_hour: Mapping[str, float] | None,
    resources: Sequence[str],
    network_gb_per_s: float | None,
    row_cache: int | None,
    samples: int | None,
    min_samples_per_s: float,
    seed: int,
    short_runs_s: float,
    places: Sequence[Place],
    tell: Tell,
) -> Profile:
    """Return what `profile` measures, layer by layer, with the problem that follows."""
    from dovetail.orchestrate.beside import BesideMeasurer, said_to_go_on  # noqa: PLC0415
    from dovetail.orchestrate.choosing import chosen_by  # noqa: PLC0415
    from dovetail.orchestrate.profiling import (  # noqa: PLC0415 - torch, when it is called
        buses_of,
        layers_s,
        left_of,
        links_between,
        network_speed,
        run_of_request,
        types_at_hand,
        types_elsewhere,
    )
    from dovetail.planner.demands import Demands  # noqa: PLC0415
    from dovetail.profiler.profile import profile as measure  # noqa: PLC0415
    from dovetail.profiler.request import ProfileRequest  # noqa: PLC0415
    from dovetail.runtime.planned.from_plan import Machine  # noqa: PLC0415
    from dovetail.runtime.prepare.main_guard import leave_when_imported  # noqa: PLC0415
    from dovetail.spec.problem import Training  # noqa: PLC0415

    if short_runs_s:
        leave_when_imported()  # short runs start processes
    request = ProfileRequest(
        model=model,
        batch=batch,
        model_options=dict(model_options or {}),
        data=data,
        data_options=dict(data_options or {}),
        optimizer=optimizer,
        seed=seed,
    )
    at_hand, elsewhere = types_at_hand(usd_per_hour), types_elsewhere(resources)
    if elsewhere:  # what is rented; a core that stands here belongs to it where its owner says so
        left_out = [each.name for each in at_hand if each.name not in (usd_per_hour or {})]
        at_hand = [each for each in at_hand if each.name not in left_out]
        if left_out:
            priced = " ".join(f"--price {name}=USD" for name in left_out)
            tell(f"what this machine has itself is left out: {priced} takes it in")
    buses = buses_of(resources)
    if row_cache and not buses and not any(resource.kind == "gpu" for resource in at_hand):
        raise SpecError(
            f"--row-cache {row_cache}: PyTorch finds no GPU here, and none of --resources has a known bus",
            hint="leave it away, profile where there is one, or name a GPU type, e.g. --resources aws:g5.xlarge",
        )
    begun_s = time.monotonic()
    network = network_speed(network_gb_per_s, tell=tell)
    with said_to_go_on("measuring layers", tell):
        found = measure(
            request,
            training=Training(
                samples=samples or request.num_samples() or SAMPLES, batch=batch, min_samples_per_s=min_samples_per_s
            ),
            at_hand=at_hand,
            elsewhere=elsewhere,
            links=links_between(at_hand, elsewhere, network, tell=tell),
            network_bytes_per_s=network.bytes_per_s,
            num_workers=workers,
            row_cache_batches=row_cache,
            buses=buses,
            seconds=layers_s(short_runs_s),
            say=lambda message: tell(f"{message} ..."),
        )
        if elsewhere:
            servers = 0 if at_hand and short_runs_s else 1  # cores of types at hand pay for servers then
            found = replace(found, problem=_with_first_node(found.problem, resources, servers, tell=tell))
    if not short_runs_s or not at_hand:  # runs here say nothing of machines that are rented
        return found
    run, here = run_of_request(request, found.problem.training.samples), Machine.this()
    left_s, choose = left_of(short_runs_s, begun_s), chosen_by(Demands())
    measurer = BesideMeasurer(run, found.problem, here, seconds=left_s, places=places, choose=choose, tell=tell)
    return replace(found, problem=measurer.measure())


def _with_first_node(problem: Problem, rented: Sequence[str], servers: int, *, tell: Tell) -> Problem:
    """Return the problem with what `launch` adds to plans of one cloud: launcher, coordinator, so many servers."""
    from dovetail.catalogue import users_catalogue  # noqa: PLC0415
    from dovetail.manifests.prices import first_node_of  # noqa: PLC0415

    catalogue = users_catalogue()
    first_node = first_node_of([catalogue.find(name) for name in rented], catalogue.values(), servers=servers)
    if first_node is not None:
        tell(
            f"every plan pays {first_node.price_per_hour:.4g} USD an hour for the first node, whose {first_node.cores} "
            "cores run launcher, coordinator and servers: [first_node]"
        )
    return msgspec.structs.replace(problem, first_node=first_node)


def simulate(
    workload: Workload | str | Path,
    policy: str | Policy = "dovetail",
    *,
    knowledge: KnowledgeName = "oracle",
    knob: float | None = None,
    nodes: str | None = None,
    restart_s: float | None = None,
    round_s: float | None = None,
    seed: int = 0,
) -> Outcome:
    """Return when every job of a workload starts and finishes under a policy, in virtual time.

    `workload` may be a file that `dovetail simulate` takes; `policy` a name, or an object with `decide(view, now_s)`.
    """
    from dovetail.scheduler.registry import make_policy  # noqa: PLC0415 - compilers, when it is called
    from dovetail.simulator.engine import simulate as run  # noqa: PLC0415
    from dovetail.simulator.traces.read import read_any  # noqa: PLC0415

    if isinstance(workload, str | Path):
        workload = read_any(
            Path(workload), nodes=nodes, speeds=None, restart_s=restart_s, round_s=round_s, elastic=False
        )
    elif nodes is not None:
        raise SpecError("simulate() has nodes beside a workload that has its own", hint="leave `nodes` away")
    else:
        given = {name: value for name, value in (("restart_s", restart_s), ("round_s", round_s)) if value is not None}
        workload = msgspec.structs.replace(workload, **given)
    chosen = make_policy(policy, knob=knob) if isinstance(policy, str) else policy
    name = policy.rpartition(":")[2] if isinstance(policy, str) else type(policy).__name__
    return run(workload, chosen, name=name, knowledge=knowledge, seed=seed).outcome
