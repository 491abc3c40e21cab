"""`dovetail check`: price any plan from its problem alone, and list the demands it misses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import errors_shown, print_line
from dovetail.units import format_count, format_duration, format_usd


def check(
    problem_file: Annotated[Path, typer.Argument(metavar="PROBLEM", help="The problem: TOML or JSON.")],
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: JSON, as `dovetail plan --out` writes.")],
    split_stages: Annotated[bool, typer.Option("--split-stages", help="Neighbours may be of one type.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Price a plan, whoever made it, and list the demands it misses (exit status 1 if any)."""
    from dovetail.cost import evaluate
    from dovetail.spec import read_plan, read_problem

    with errors_shown(as_json=as_json):
        problem = read_problem(problem_file)
        found = evaluate(problem, read_plan(plan_file).stages, split_stages=split_stages)
    if as_json:
        facts = {name: getattr(found, name) for name in ("samples_per_s", "cost_per_hour", "hours", "cost")}
        print_line(json.dumps({**facts, "violations": list(found.violations)}))
    else:
        print_line(
            f"{format_count(found.samples_per_s)} samples/s, {format_usd(found.cost_per_hour)} per hour, "
            f"{format_duration(found.hours * 3600)}, {format_usd(found.cost)} in all"
        )
        for violation in found.violations:
            print_line(f"violates: {violation}")
    if found.violations:
        raise typer.Exit(1)
