"""`dovetail check`: price any plan from its problem alone, and list the demands it misses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.catalogue import FinishIn, MinSamplesPerS, OwnCatalogues, ProblemFile, Spot, problem_from
from dovetail.cli.output import errors_shown, print_line, say
from dovetail.errors import DovetailError
from dovetail.units import format_count, format_duration, format_usd

if TYPE_CHECKING:
    from dovetail.spec import Plan, Problem


def check(
    problem_file: ProblemFile,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: JSON, as `dovetail plan --out` writes.")],
    min_samples_per_s: MinSamplesPerS = None,
    finish_in: FinishIn = None,
    spot: Spot = False,
    catalogue: OwnCatalogues = None,
    split_stages: Annotated[bool, typer.Option("--split-stages", help="Neighbours may be of one type.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Price a plan, whoever made it, and list the demands it misses (exit status 1 if any)."""
    import msgspec

    from dovetail.cost import evaluate_plan

    with errors_shown(as_json=as_json):
        plan = _one_plan(plan_file)
        problem = problem_from(
            problem_file, catalogue, spot=spot or plan.spot, min_samples_per_s=min_samples_per_s, finish_in=finish_in
        )
        found = evaluate_plan(problem, plan, split_stages=split_stages)
    warnings = _warnings(problem, plan)
    for warning in warnings:
        say(f"warning: {plan_file}: {warning}")
    if as_json:
        crosses = ("egress_cost", "egress_bytes") if found.egress_bytes > 0 else ()
        facts = {name: getattr(found, name) for name in ("samples_per_s", "cost_per_hour", "hours", "cost", *crosses)}
        if problem.first_node is not None:
            facts["first_node_per_hour"] = problem.first_node_per_hour
        if found.parts:
            facts |= {"cores": found.cores, "parts": [msgspec.to_builtins(part) for part in found.parts]}
        print_line(json.dumps({**facts, "violations": list(found.violations), "warnings": warnings}))
    else:
        print_line(
            f"{format_count(found.samples_per_s)} samples/s, {format_usd(found.cost_per_hour)} per hour, "
            f"{format_duration(found.hours * 3600)}, {format_usd(found.cost)} in all"
            + (f", {format_usd(found.egress_cost)} of it egress" if found.egress_bytes > 0 else "")
            + (
                f"; {format_usd(problem.first_node_per_hour)} of each hour is the first node"
                if problem.first_node is not None
                else ""
            )
        )
        for part in found.parts:
            cores = f" on {part.cores} core{'s' * (part.cores != 1)}" if part.cores else ""
            print_line(f"{part.part}: {format_duration(part.seconds_per_batch)} a batch{cores}")
        for violation in found.violations:
            print_line(f"violates: {violation}")
    if found.violations:
        raise typer.Exit(1)


def _one_plan(path: Path) -> Plan:
    """Return the plan in a file; refuse a file of several."""
    from dovetail.spec import Plan
    from dovetail.spec.files import read_table, struct_from

    table = read_table(path)
    for key in ("pareto", "compare"):
        if key in table:
            raise DovetailError(
                f"{path}: holds the plans of --{key}, and a check takes one plan",
                hint=f"copy one entry of `{key}` to a file of its own",
            )
    return struct_from(table, Plan, file=str(path))


def _warnings(problem: Problem, plan: Plan) -> list[str]:
    """Return what is odd about a plan though it is no demand missed."""
    found = []
    if plan.problem is not None and plan.problem != problem.digest():
        found.append("was made for another problem: its floor, prices, times or sizes differ from this one's")
    if problem.beside is not None and plan.place is None:
        found.append("does not say where rows are kept (`place`), so its stages are priced alone")
    if problem.beside is None and plan.place is not None:
        found.append("has parts beside its stages, and the problem has no [beside]: its stages are priced alone")
    return found
