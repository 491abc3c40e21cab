"""How far a plan depends on times that were estimated, in words."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.cli.output import print_line
from dovetail.planner.demands import Demands
from dovetail.planner.dependence import dependence
from dovetail.spec import Plan, Problem


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
