"""What runs beside the stages of a plan, and what it was compared with, as tables for people."""

from __future__ import annotations

from dovetail.cli.tables import make_table, wide_console
from dovetail.spec import Plan
from dovetail.units import format_count, format_usd

PLACES = {
    "local": "with the one process that trains",
    "servers": "on servers",
    "sharded": "over the workers, each with its own",
}
"""Where rows are kept, in words."""


def print_layout(plan: Plan) -> None:
    """Print where rows are kept, what each part of the plan takes, and how plain layouts would do."""
    if plan.place is None:
        return
    console = wide_console()
    servers = f": {plan.servers}, a core each" if plan.servers else ""
    console.print(f"rows    {PLACES[plan.place]}{servers}", highlight=False)
    reading = f", {plan.readers} of them to read" if plan.readers else ""
    console.print(f"cores   {plan.cores} in all{reading}", highlight=False)
    table = make_table(("part", "cores", "s/batch"), text=("part",))
    for part in plan.parts:
        table.add_row(part.part, f"{part.cores:,}" if part.cores else "", f"{part.seconds_per_batch:.4g}")
    console.print()
    console.print(table)
    if plan.compared:
        _print_compared(plan)


def _print_compared(plan: Plan) -> None:
    """Print the plain layouts beside the chosen one."""
    table = make_table(("compared with", "samples/s", "USD/h", "USD"), text=("compared with",))
    table.add_row("the plan", format_count(plan.samples_per_s), f"{plan.cost_per_hour:,.2f}", format_usd(plan.cost))
    for other in plan.compared:
        table.add_row(
            other.layout,
            f"{format_count(other.samples_per_s)} ({_times(other.samples_per_s, plan.samples_per_s)})",
            f"{other.cost_per_hour:,.2f} ({_times(other.cost_per_hour, plan.cost_per_hour)})",
            f"{format_usd(other.cost)} ({_times(other.cost, plan.cost)})",
        )
    console = wide_console()
    console.print(table)


def _times(one: float, other: float) -> str:
    """Return how many times as much one figure is as another."""
    return f"{one / other:.2f}x" if other > 0 else "-"
