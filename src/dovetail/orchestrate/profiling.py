"""Measuring a model on what this machine has: its types and their prices, the ways between them, every layer."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from itertools import combinations

import msgspec
import torch

from dovetail.catalogue import users_catalogue
from dovetail.errors import DovetailError
from dovetail.machine import cores, memory
from dovetail.models.recipe import RECIPES
from dovetail.orchestrate.beside import MOST_S, BesideMeasurer, said_to_go_on
from dovetail.orchestrate.choosing import chosen_by
from dovetail.planner.demands import Demands
from dovetail.profiler.links import LinkSpeed, measure_device_copies, measure_loopback
from dovetail.profiler.profile import LAYERS_S, profile
from dovetail.profiler.request import ProfileRequest
from dovetail.runtime.planned.from_plan import Machine, Tell, quietly
from dovetail.runtime.prepare.run_folder import load_source, with_named_data
from dovetail.spec import Link, Problem, ResourceType, Training
from dovetail.spec.run import Run, RunData, RunModel, RunTraining
from dovetail.spec.run_sections import RunOptimizer

CORE_USD_PER_HOUR = 0.04
GPU_USD_PER_HOUR = 2.42
"""What HeterPS paid for a core and a V100; a user says what theirs cost."""
NETWORK_LATENCY_S = 5e-5
"""Of a network whose bandwidth is given: what a message takes within one data centre."""
DEFAULT_BATCH = 4096
LAYERS_PART = 1 / 3
"""Of the time for measuring that layers may take alone."""


def profiled_here(
    run: Run,
    machine: Machine,
    *,
    usd_per_hour: Mapping[str, float] | None = None,
    min_samples_per_s: float = 0.0,
    short_runs_s: float = MOST_S,
    demands: Demands | None = None,
    tell: Tell = quietly,
) -> Problem:
    """Return the problem of a run's model on what this machine has, measured.

    Layers, and what runs beside them, have `short_runs_s` together, layers a third of it; without short runs, layers
    have as long as they like. `demands` are those of the plan that is to be made.
    """
    begun_s = time.monotonic()
    batch = run.training.batch or DEFAULT_BATCH
    at_hand = [
        msgspec.structs.replace(each, limit=machine.gpus if each.kind == "gpu" else machine.cores)
        for each in types_at_hand(usd_per_hour)
    ]
    network = network_speed(None, tell=tell)
    with said_to_go_on("measuring layers", tell):
        found = profile(
            ProfileRequest(
                model=run.model.name,
                batch=batch,
                model_options=run.model.options,
                data=run.data.name,
                data_options=run.data.options,
                seed=run.training.seed,
            ),
            training=Training(samples=run.data.samples or batch, batch=batch, min_samples_per_s=min_samples_per_s),
            at_hand=at_hand,
            links=links_between(at_hand, [], network, tell=tell),
            network_bytes_per_s=network.bytes_per_s,
            seconds=layers_s(short_runs_s),
            say=lambda message: tell(f"{message} ..."),
        )
    if not short_runs_s:
        return found.problem
    left_s, choose = left_of(short_runs_s, begun_s), chosen_by(demands or Demands())
    return BesideMeasurer(run, found.problem, machine, seconds=left_s, choose=choose, tell=tell).measure()


def layers_s(short_runs_s: float) -> float:
    """Return how long layers may be measured where all together has so many seconds, or nothing else is measured."""
    return LAYERS_PART * short_runs_s if short_runs_s else LAYERS_S


def left_of(short_runs_s: float, begun_s: float) -> float:
    """Return the seconds that are left for short runs: what layers and links have not taken, but half at least."""
    return max(0.5 * short_runs_s, short_runs_s - (time.monotonic() - begun_s))


def run_of_request(request: ProfileRequest, samples: int) -> Run:
    """Return the run of a model that is profiled: so many samples, or all that its data have."""
    options = dict(request.data_options)
    if request.data == "clicks" and request.model in RECIPES:
        options.setdefault("truth", RECIPES[request.model].truth)
    run = Run(
        model=RunModel(name=request.model, options=dict(request.model_options)),
        data=RunData(name=request.data, options=options),
        training=RunTraining(batch=request.batch, seed=request.seed),
        optimizer=RunOptimizer(name=request.optimizer),
    )
    if load_source(with_named_data(run)).num_samples is None:
        run = msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, samples=samples))
    return run


def checked_prices(usd_per_hour: Mapping[str, float] | None, known: Container[str], *, hint: str) -> dict[str, float]:
    """Return what a unit of each type costs; refuse types that are not known, of which `hint` says which are."""
    for name in usd_per_hour or {}:
        if name not in known:
            raise DovetailError(f"--price names `{name}`", hint=hint)
    return dict(usd_per_hour or {})


def types_at_hand(usd_per_hour: Mapping[str, float] | None = None) -> list[ResourceType]:
    """Return the types of this machine: one core, and the CUDA device where there is one."""
    usd = {"cpu": CORE_USD_PER_HOUR, "gpu": GPU_USD_PER_HOUR}
    usd |= checked_prices(usd_per_hour, usd, hint="types at hand are called `cpu` and `gpu`")
    core_bytes = memory().usable_bytes / max(cores().num_usable, 1.0)
    types = [ResourceType(name="cpu", kind="cpu", price_per_hour=usd["cpu"], memory_bytes=core_bytes)]
    if torch.cuda.is_available():
        gpu_bytes = float(torch.cuda.get_device_properties(0).total_memory)
        types.append(ResourceType(name="gpu", kind="gpu", price_per_hour=usd["gpu"], memory_bytes=gpu_bytes))
    return types


def types_elsewhere(names: Sequence[str]) -> list[ResourceType]:
    """Return catalogue types to estimate; refuse those whose data sheets say too little."""
    if not names:
        return []
    catalogue = users_catalogue()
    types = [catalogue.find(name).to_resource() for name in names]
    for name, resource in zip(names, types, strict=True):
        if resource.flops_per_s is None or resource.memory_bytes_per_s is None:
            raise DovetailError(
                f"{name} has no peaks in the catalogue, so it cannot be estimated",
                hint="choose a type with an accelerator, or profile on such a machine",
            )
    return types


def buses_of(names: Sequence[str]) -> dict[str, float]:
    """Return the bytes a second between host memory and accelerators of catalogue types, by the types' names."""
    if not names:
        return {}
    catalogue = users_catalogue()
    entries = [catalogue.find(name) for name in names]
    rates = {entry.to_resource().name: entry.host_bus_bytes_per_s for entry in entries if entry.kind == "gpu"}
    return {name: rate for name, rate in rates.items() if rate is not None}


def links_between(
    at_hand: Sequence[ResourceType], elsewhere: Sequence[ResourceType], network: LinkSpeed, *, tell: Tell = quietly
) -> list[Link]:
    """Return the ways between types: the bus between this machine's CPU and GPU, and the network between all others."""
    links = []
    for one, other in combinations([*at_hand, *elsewhere], 2):
        if one in at_hand and other in at_hand:
            tell("measuring copies between host and GPU ...")
            copies = measure_device_copies()
            links.append(copies.there.link(source=one.name, target=other.name))
            links.append(copies.back.link(source=other.name, target=one.name))
        else:
            links.append(network.link(source=one.name, target=other.name))
    return links


def network_speed(gb_per_s: float | None, *, tell: Tell = quietly) -> LinkSpeed:
    """Return the speed between units: the one given, or the loopback network's."""
    if gb_per_s is not None:
        if not gb_per_s > 0:
            raise DovetailError(f"--network-gb-per-s is {gb_per_s}", hint="give a number above zero, e.g. 12.5")
        return LinkSpeed(bytes_per_s=gb_per_s * 1e9, latency_s=NETWORK_LATENCY_S, spread=0.0)
    tell("measuring the loopback network ...")
    return measure_loopback().there
