"""Problems on machines as the benchmark draws them: each has a plan for sure, and it is met."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cost import evaluate
from dovetail.planner.demands import Demands
from dovetail.planner.layouts.families import hourly_prices
from dovetail.spec import Stage

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("num_layers", "num_types", "seed"), [(16, 8, 1), (64, 8, 1), (300, 16, 1)])
def test_where_cores_accelerators_and_filling_bind_a_legal_plan_is_met_at_the_floor(
    monkeypatch, num_layers: int, num_types: int, seed: int
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import planning

    problem = planning.binding_problem("machines", num_layers, num_types, seed)
    floor = problem.min_samples_per_s

    found = hourly_prices(problem, Demands()).at(floor)

    assert floor > 0
    assert found.route is not None
    route, names = found.route, [resource.name for resource in problem.resources]
    firsts = [0, *(int(last) + 1 for last in route.lasts[:-1])]
    stages = [
        Stage(resource=names[t], first_layer=first, last_layer=int(last), units=int(units))
        for t, first, last, units in zip(route.types, firsts, route.lasts, route.units, strict=True)
    ]
    priced = evaluate(problem, stages, place=route.place, servers=route.servers, readers=route.readers)
    assert not priced.violations
    assert priced.samples_per_s >= floor * (1 - 1e-9)
    assert found.lower_bound <= priced.cost_per_hour * (1 + 1e-9)
