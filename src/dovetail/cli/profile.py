"""`dovetail profile`: measure a model's layers on this machine, and write the problem that `dovetail plan` reads."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.options import DataName, DataOptions, ModelName, ModelOptions, Prices
from dovetail.cli.output import errors_shown, print_json, say
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.profiler.links import LinkSpeed
    from dovetail.profiler.profile import Profile
    from dovetail.spec import Link, ResourceType

CORE_USD_PER_HOUR = 0.04
GPU_USD_PER_HOUR = 2.42
"""What HeterPS paid for a core and a V100; --price says what yours cost."""
NETWORK_LATENCY_S = 5e-5
"""Of a network whose bandwidth is given: what a message takes within one data centre."""


def profile(
    model: ModelName,
    batch: Annotated[int, typer.Option(help="The batch to measure for.")] = 1024,
    out: Annotated[Path | None, typer.Option(help="Write the problem file: FILE.toml or FILE.json.")] = None,
    option: ModelOptions = None,
    data: DataName = "clicks",
    data_option: DataOptions = None,
    optimizer: Annotated[str | None, typer.Option(help="The optimizer, instead of the model's own.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="CPU workers that measure side by side.")] = 1,
    price: Prices = None,
    resources: Annotated[
        list[str] | None, typer.Option("--resources", help="Catalogue types to estimate, e.g. aws:g5.xlarge.")
    ] = None,
    network_gb_per_s: Annotated[
        float | None, typer.Option(help="Bandwidth between units; absent: measured over loopback.")
    ] = None,
    row_cache: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="What few rows on a GPU cost, others in host memory, by the keys of so many batches; 0: not asked; "
            "absent: asked for tables that do not fit.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many samples training will see.")] = 45_840_617,
    min_samples_per_s: Annotated[float, typer.Option(help="The throughput floor to write down.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the model's initial values and generated data.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the problem as one JSON object.")] = False,
) -> None:
    """Measure forward, backward and update of every layer, its traffic and its memory."""
    with errors_shown(as_json=as_json):
        import msgspec

        from dovetail.profiler.profile import profile as measure
        from dovetail.profiler.request import ProfileRequest
        from dovetail.spec import Training, write_problem

        request = ProfileRequest(
            model=model,
            batch=batch,
            model_options=parse_options(option or []),
            data=data,
            data_options=parse_options(data_option or []),
            optimizer=optimizer,
            seed=seed,
        )
        at_hand, elsewhere = types_at_hand(price or []), _types_elsewhere(resources or [])
        buses = _buses(resources or [])
        if row_cache and not buses and not any(resource.kind == "gpu" for resource in at_hand):
            raise DovetailError(
                f"--row-cache {row_cache}: PyTorch finds no GPU here, and none of --resources has a known bus",
                hint="leave it away, profile where there is one, or name a GPU type, e.g. --resources aws:g5.xlarge",
            )
        network = network_speed(network_gb_per_s)
        found = measure(
            request,
            training=Training(samples=samples, batch=batch, min_samples_per_s=min_samples_per_s),
            at_hand=at_hand,
            elsewhere=elsewhere,
            links=links_between(at_hand, elsewhere, network),
            network_bytes_per_s=network.bytes_per_s,
            num_workers=workers,
            row_cache_batches=row_cache,
            buses=buses,
            say=lambda message: say(f"{message} ..."),
        )
        if out is not None:
            write_problem(found.problem, out)
            say(f"written: {out}")
        if as_json:
            print_json(msgspec.json.encode(found.problem))
        else:
            _print(found)


def usd_per_hour(prices: list[str], known: Container[str], *, hint: str) -> dict[str, float]:
    """Return what a unit of each type costs, where it is said as NAME=USD; `hint` says which types are known."""
    usd: dict[str, float] = {}
    for text in prices:
        name, _, value = text.partition("=")
        try:
            usd[name] = float(value)
        except ValueError:
            raise DovetailError(f"--price {text} is not NAME=USD", hint="write it like --price cpu=0.04") from None
        if name not in known:
            raise DovetailError(f"--price names `{name}`", hint=hint)
    return usd


def types_at_hand(prices: list[str]) -> list[ResourceType]:
    """Return the types of this machine: one core, and the CUDA device where there is one."""
    import torch

    from dovetail.profiler.machine import cores, memory
    from dovetail.spec import ResourceType

    usd = {"cpu": CORE_USD_PER_HOUR, "gpu": GPU_USD_PER_HOUR}
    usd |= usd_per_hour(prices, usd, hint="types at hand are called `cpu` and `gpu`")
    core_bytes = memory().usable_bytes / max(cores().num_usable, 1.0)
    types = [ResourceType(name="cpu", kind="cpu", price_per_hour=usd["cpu"], memory_bytes=core_bytes)]
    if torch.cuda.is_available():
        gpu_bytes = float(torch.cuda.get_device_properties(0).total_memory)
        types.append(ResourceType(name="gpu", kind="gpu", price_per_hour=usd["gpu"], memory_bytes=gpu_bytes))
    return types


def _types_elsewhere(names: list[str]) -> list[ResourceType]:
    """Return catalogue types to estimate; refuse those whose data sheets say too little."""
    from dovetail.cli.catalogue import load

    if not names:
        return []
    catalogue = load(None)
    types = [catalogue.find(name).to_resource() for name in names]
    for name, resource in zip(names, types, strict=True):
        if resource.flops_per_s is None or resource.memory_bytes_per_s is None:
            raise DovetailError(
                f"{name} has no peaks in the catalogue, so it cannot be estimated",
                hint="choose a type with an accelerator, or profile on such a machine",
            )
    return types


def _buses(names: list[str]) -> dict[str, float]:
    """Return the bytes a second between host memory and accelerators of catalogue types, by the types' names."""
    from dovetail.cli.catalogue import load

    if not names:
        return {}
    catalogue = load(None)
    entries = [catalogue.find(name) for name in names]
    rates = {entry.to_resource().name: entry.host_bus_bytes_per_s for entry in entries if entry.kind == "gpu"}
    return {name: rate for name, rate in rates.items() if rate is not None}


def links_between(at_hand: list[ResourceType], elsewhere: list[ResourceType], network: LinkSpeed) -> list[Link]:
    """Return the ways between types: the bus between this machine's CPU and GPU, and the network between all others."""
    from itertools import combinations

    from dovetail.profiler.links import measure_device_copies

    links = []
    for one, other in combinations([*at_hand, *elsewhere], 2):
        if one in at_hand and other in at_hand:
            say("measuring copies between host and GPU ...")
            copies = measure_device_copies()
            links.append(copies.there.link(source=one.name, target=other.name))
            links.append(copies.back.link(source=other.name, target=one.name))
        else:
            links.append(network.link(source=one.name, target=other.name))
    return links


def network_speed(gb_per_s: float | None) -> LinkSpeed:
    """Return the speed between units."""
    from dovetail.profiler.links import LinkSpeed, measure_loopback

    if gb_per_s is not None:
        if not gb_per_s > 0:
            raise DovetailError(f"--network-gb-per-s is {gb_per_s}", hint="give a number above zero, e.g. 12.5")
        return LinkSpeed(bytes_per_s=gb_per_s * 1e9, latency_s=NETWORK_LATENCY_S, spread=0.0)
    say("measuring the loopback network ...")
    return measure_loopback().there


def _print(found: Profile) -> None:
    """Print a row a layer, for each type at hand."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from dovetail.cli.tables import wide_console
    from dovetail.units import format_bytes, format_duration

    console = wide_console()
    for each in found.measured:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"on one unit of {each.resource.name}")
        for heading in ("layer", "kind", "forward", "backward", "update", "spread", "parallel", "weights", "traffic"):
            table.add_column(heading, justify="left" if heading in ("layer", "kind") else "right", no_wrap=True)
        for position, block in enumerate(found.graph.blocks):
            seconds, sizes = each.seconds_by_units[1][position], found.sizes[position]
            table.add_row(
                block.name,
                block.kind,
                format_duration(seconds.forward_s),
                format_duration(seconds.backward_s),
                format_duration(seconds.update_s),
                f"{seconds.spread:.0%}",
                f"{each.law(position).parallel:.3f}",
                format_bytes(sizes.weight_bytes),
                format_bytes(sizes.traffic_bytes),
            )
        console.print(table)
        total_s = sum(seconds.total_s for seconds in each.seconds_by_units[1])
        rate = found.problem.training.batch / total_s
        console.print(f"one unit of {each.resource.name} alone: {rate:,.0f} samples/s\n", highlight=False)
