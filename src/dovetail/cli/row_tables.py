"""How fast a stage is by the memory that its embeddings' rows are given, as a table for people."""

from __future__ import annotations

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dovetail.cli.tables import wide_console
from dovetail.cost import plan_memory
from dovetail.cost.plan import stage_times
from dovetail.spec import Plan, Problem, Stage
from dovetail.units import format_bytes, format_count


def print_row_budgets(problem: Problem, plan: Plan) -> None:
    """Print for each embedding that may keep only some rows what more or less memory for them would do."""
    for number, stage in enumerate(plan.stages):
        for layer in problem.layers[stage.first_layer : stage.last_layer + 1]:
            if layer.on[stage.resource].cache is not None:
                wide_console().print(_table(problem, plan, number, layer.name))


def _table(problem: Problem, plan: Plan, number: int, name: str) -> Table:
    """Return a row a budget: the points of the curve, what the plan gives, and all rows."""
    stage = plan.stages[number]
    cache = next(layer.on[stage.resource].cache for layer in problem.layers if layer.name == name)
    chosen = (stage.row_budgets or {}).get(name)
    title = f"rows of `{name}` on each {stage.resource} of stage {number + 1}"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for heading in ("memory for rows", "found there", "s/batch", "samples/s", "of the unit", ""):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    points = {held for held, _ in cache.hits if held >= cache.least_bytes} if cache is not None else set()
    room = problem.resource(stage.resource).memory_bytes
    for held in [*sorted(points | ({chosen} if chosen is not None else set())), None]:
        stages = [*plan.stages[:number], _with_rows(stage, name, held), *plan.stages[number + 1 :]]
        seconds = stage_times(problem, stages, number).seconds
        taken = plan_memory(problem, stages)[number].total_bytes
        table.add_row(
            "all" if held is None else format_bytes(held),
            "" if held is None or cache is None else f"{cache.hit_ratio(held):.1%}",
            f"{seconds:.4g}",
            format_count(problem.training.batch / seconds) if seconds > 0 else "-",
            "not said" if room is None else f"{taken / room:.0%}",
            "<- the plan" if held == chosen else "too much" if room is not None and taken > room else "",
        )
    return table


def _with_rows(stage: Stage, name: str, held: float | None) -> Stage:
    """Return a stage whose embedding keeps so many bytes, or all of its rows."""
    others = {other: given for other, given in (stage.row_budgets or {}).items() if other != name}
    budgets = others if held is None else {**others, name: held}
    return msgspec.structs.replace(stage, row_budgets=budgets or None)
