"""`dovetail profile`: measure a model's layers on this machine, and write the problem that `dovetail plan` reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.options import DataName, DataOptions, ModelName, ModelOptions, Prices, ShortRuns, parsed_prices
from dovetail.cli.output import errors_shown, print_json, say

if TYPE_CHECKING:
    from dovetail.profiler.profile import Profile
    from dovetail.spec import Beside, Problem


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
        list[str] | None,
        typer.Option("--resources", help="Catalogue types to rent, estimated, e.g. aws:g5.xlarge."),
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
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="How many samples training will see; absent: those of the data, or 45,840,617."),
    ] = None,
    min_samples_per_s: Annotated[float, typer.Option(help="The throughput floor to write down.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the model's initial values and generated data.")] = 0,
    short_runs_s: ShortRuns = 30.0,
    place: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Measure and plan only layouts with their rows there: `local`, `servers`, `sharded`; absent: all.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the problem as one JSON object.")] = False,
) -> None:
    """Measure forward, backward and update of every layer, its traffic and its memory, and what runs beside them."""
    with errors_shown(as_json=as_json):
        import msgspec

        from dovetail.orchestrate.commands import checked_places, measured_profile
        from dovetail.spec import write_problem

        found = measured_profile(
            model,
            data,
            batch=batch,
            model_options=parse_options(option or []),
            data_options=parse_options(data_option or []),
            optimizer=optimizer,
            workers=workers,
            usd_per_hour=parsed_prices(price),
            resources=resources or [],
            network_gb_per_s=network_gb_per_s,
            row_cache=row_cache,
            samples=samples,
            min_samples_per_s=min_samples_per_s,
            seed=seed,
            short_runs_s=short_runs_s,
            places=checked_places(place or []),
            tell=say,
        )
        if out is not None:
            from dovetail.catalogue import users_catalogue

            entries = [users_catalogue(()).find(each) for each in resources or ()]
            write_problem(found.problem, out, types={entry.instance: entry.id for entry in entries})
            say(f"written: {out}")
        if as_json:
            print_json(msgspec.json.encode(found.problem))
        else:
            _print(found)


def _print(found: Profile) -> None:
    """Print a row a layer, for each type at hand."""
    from dovetail.cli.tables import make_table, wide_console
    from dovetail.units import format_bytes, format_duration

    console = wide_console()
    here = {each.resource.name for each in found.measured}
    for resource in found.problem.resources:
        if resource.name in here:
            continue
        table = make_table(
            ("layer", "kind", "compute", "traffic", "weights"),
            text=("layer", "kind"),
            title=f"estimated for one unit of {resource.name}, by its data sheet",
        )
        for layer, sizes in zip(found.problem.layers, found.sizes, strict=True):
            if (time := layer.on.get(resource.name)) is not None:
                weights, traffic = format_bytes(sizes.weight_bytes), format_bytes(sizes.traffic_bytes)
                table.add_row(layer.name, layer.kind, format_duration(time.compute_s), traffic, weights)
        console.print(table)
    for each in found.measured:
        table = make_table(
            ("layer", "kind", "forward", "backward", "update", "spread", "parallel", "weights", "traffic"),
            text=("layer", "kind"),
            title=f"on one unit of {each.resource.name}",
        )
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
    if found.problem.beside is not None:
        _print_beside(found.problem, found.problem.beside)


def _print_beside(problem: Problem, beside: Beside) -> None:
    """Print what runs beside the layers, and each layout that was measured as a whole."""
    from dovetail.cli.tables import make_table, wide_console
    from dovetail.units import format_duration

    console = wide_console()
    table = make_table(
        ("layout", "on", "units", "servers", "cores", "a batch", "samples/s", "spread"), text=("layout", "on")
    )
    for whole in beside.wholes:
        table.add_row(
            whole.place,
            whole.resource,
            str(whole.units),
            str(whole.servers or ""),
            str(whole.cores),
            format_duration(whole.seconds_per_batch),
            f"{problem.training.batch / whole.seconds_per_batch:,.0f}",
            "" if whole.error is None else f"{whole.error:.0%}",
        )
    console.print(table)
    parts = [f"reading {format_duration(beside.read_core_s)} of a core"]
    if beside.server_core_s is not None:
        parts += [
            f"servers {format_duration(beside.server_core_s)} of a core",
            f"a step {format_duration(beside.step_s)}",
        ]
    parts += [f"rows {format_duration(seconds)} of a {name}" for name, seconds in beside.client_s.items()]
    console.print(f"beside the layers of a batch: {', '.join(parts)}", highlight=False, soft_wrap=True)
