"""`dovetail problem make`: problems from a seed, to try the planner on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import errors_shown, say

problem = typer.Typer(help="Make problem files.", no_args_is_help=True)


@problem.callback()
def problems() -> None:
    """Make problem files."""


@problem.command()
def make(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it: FILE.toml or FILE.json.")],
    layers: Annotated[int, typer.Option(min=1, help="How many layers.")] = 16,
    types: Annotated[int, typer.Option(min=1, max=1000, help="How many resource types.")] = 8,
    min_samples_per_s: Annotated[float, typer.Option(min=0, help="The throughput floor.")] = 50_000.0,
    limits: Annotated[float, typer.Option(min=0, max=1, help="The share of types that are limited.")] = 0.0,
    links: Annotated[float, typer.Option(min=0, max=1, help="The share of pairs of types with a link.")] = 0.0,
    holes: Annotated[float, typer.Option(min=0, max=1, help="The share of types a layer cannot run on.")] = 0.0,
    sites: Annotated[int, typer.Option(min=0, help="At how many sites the types stand; 0 = none is said.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed makes the same problem.")] = 0,
) -> None:
    """Write a made-up problem in which no type is best at everything."""
    from dovetail.spec import write_problem
    from dovetail.spec.synthetic import synthetic_problem

    with errors_shown():
        made = synthetic_problem(
            num_layers=layers,
            num_types=types,
            seed=seed,
            min_samples_per_s=min_samples_per_s,
            limit_share=limits,
            link_share=links,
            hole_share=holes,
            num_sites=sites,
        )
        write_problem(made, out)
    say(f"written: {out} ({layers} layers, {types} types)")
