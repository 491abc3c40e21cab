"""Which layers on which type, on how many units. Every name is imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.planner.demands import Demands
    from dovetail.planner.methods import Options, plan_with
    from dovetail.planner.plan import cheapest_plan, fastest_plan, pareto_plans

__all__ = ["Demands", "Options", "cheapest_plan", "fastest_plan", "pareto_plans", "plan_with"]

__getattr__, __dir__ = on_demand(__name__)
