"""Which plan is run: the cheapest of a speed that was asked for, or else the fastest."""

from __future__ import annotations

import time
from dataclasses import replace

from dovetail.orchestrate.beside import Choose, said_to_go_on
from dovetail.planner.compile import compile_kernels
from dovetail.planner.demands import Demands
from dovetail.planner.methods import plan_with
from dovetail.planner.plan import fastest_plan
from dovetail.runtime.planned.from_plan import Tell, quietly
from dovetail.spec import Plan, Problem

TRIED_S = 1.0
"""For a plan that is only tried, while a model is measured."""


def planned_for(problem: Problem, demands: Demands, *, tell: Tell = quietly) -> Plan:
    """Return the cheapest plan of a speed that was asked for, or else the fastest: what is here is paid for already."""
    with said_to_go_on("compiling the planner's kernels, once on a machine", tell):
        compile_kernels(clock=time.perf_counter)
    tell(f"planning, {demands.time_limit_s:.0f} s at most ...")
    with said_to_go_on("planning", tell):
        return _plan(problem, demands)


def chosen_by(demands: Demands) -> Choose:
    """Return what says quickly which plan would be run by what is known so far."""

    def choose(problem: Problem) -> Plan:
        compile_kernels(clock=time.perf_counter)
        return _plan(problem, replace(demands, time_limit_s=min(TRIED_S, demands.time_limit_s)))

    return choose


def _plan(problem: Problem, demands: Demands) -> Plan:
    """Return the plan."""
    if problem.min_samples_per_s > 0 and demands.max_cost_per_hour is None:
        return plan_with("exact", problem, demands, clock=time.perf_counter)
    return fastest_plan(problem, demands, clock=time.perf_counter)
