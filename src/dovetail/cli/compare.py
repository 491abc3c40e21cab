"""`dovetail plan --compare`: what every method would have paid, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dovetail.charts import comparison_facts, draw_comparison, save_figure
from dovetail.cli.output import print_json, print_line, say, write_file
from dovetail.cli.tables import make_table, units_used, wide_console
from dovetail.errors import MissingExtraError, PlanError
from dovetail.planner.demands import Demands
from dovetail.planner.dependence import dependence
from dovetail.planner.methods import METHODS, Options, options_for, plan_with
from dovetail.spec import Plan, Problem
from dovetail.units import format_count, format_duration


class NoResult(msgspec.Struct, frozen=True, kw_only=True):
    """A method that has no plan, and why."""

    method: str
    error: str
    hint: str


def compare_methods(
    problem: Problem, demands: Demands, options: Options, *, plot: Path | None, out: Path | None, as_json: bool
) -> None:
    """Plan by every method; print the table or the JSON, and draw it where asked."""
    plans: list[Plan] = []
    failures: list[NoResult] = []
    for method in METHODS:
        say(f"planning by `{method}` ...")
        concerned = options_for(method, options)
        try:
            plans.append(plan_with(method, problem, demands, clock=time.perf_counter, options=concerned))
        except (PlanError, MissingExtraError) as error:
            if not plans:  # `exact` comes first: where it has no plan, it is the problem's fault and not a method's
                raise
            failures.append(NoResult(method=method, error=error.message, hint=error.hint))
    encoded = msgspec.json.encode({"compare": [*plans, *failures]})
    if out is not None:
        write_file(out, encoded + b"\n")
    if plot is not None:
        optimum = plans[0].cost
        save_figure(draw_comparison(plans, optimum), plot, table=comparison_facts(plans, optimum))
        say(f"drawn: {plot}")
    if as_json:
        print_json(encoded)
    else:
        _print(plans, failures)


def _print(plans: list[Plan], failures: list[NoResult]) -> None:
    """Print one row a method, the cheapest first."""
    table = make_table(("method", "USD", "x optimum", "samples/s", "stages", "took", "units"), text=("method", "units"))
    optimum = plans[0]
    for plan in sorted(plans, key=lambda plan: plan.cost):
        table.add_row(
            plan.method,
            f"{plan.cost:,.4g}",
            f"{plan.cost / optimum.cost:.4f}",
            format_count(plan.samples_per_s),
            str(len(plan.stages)),
            format_duration(plan.seconds),
            units_used(plan),
        )
    console = wide_console()
    console.print(table)
    for failure in failures:
        console.print(
            f"{failure.method}: {failure.error}; {failure.hint}", highlight=False, markup=False, soft_wrap=True
        )
    proof = "proven optimal" if optimum.optimal else "the best found; not proven optimal"
    console.print(f"\nthe plan of `{optimum.method}` is {proof}", highlight=False)


def print_dependence(problem: Problem, plan: Plan, demands: Demands, *, clock: Callable[[], float]) -> None:
    """Say how far the plan depends on times that were estimated."""
    if demands.max_cost_per_hour is not None:
        return
    found = dependence(problem, plan, demands, clock=clock)
    if found is None:
        return
    costs = [
        "there would be no plan" if cost is None else f"the cheapest plan would cost {cost:,.2f} USD"
        for cost in (found.cost_if_slower, found.cost_if_faster)
    ]
    factor = 1.0 + found.error
    print_line(
        f"estimated, not measured: {', '.join(found.types)}. Were all of that {factor:.3g} times as slow, {costs[0]}; "
        f"as fast, {costs[1]}."
    )
    if found.changes:
        print_line(
            "Layers would then run elsewhere: measure before you rely on it (dovetail profile on such a machine)."
        )
    else:
        print_line("The same layers would run on the same types.")
