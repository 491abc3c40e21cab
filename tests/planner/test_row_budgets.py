"""Embeddings that keep only some rows on a unit: what that costs by hand, and the best budget against all others."""

import itertools
import random
import time

import msgspec
import pytest

from dovetail.cost import evaluate, plan_memory
from dovetail.errors import NoPlanError, PlanError, SpecError
from dovetail.planner.demands import Demands
from dovetail.planner.methods import plan_with
from dovetail.planner.plan import cheapest_plan, fastest_plan, pareto_plans
from dovetail.spec import Layer, LayerTime, Problem, ResourceType, RowCache, Stage, Training

CURVE = ((100.0, 0.5), (200.0, 0.8), (400.0, 0.9))


def problem_of(*, memory_bytes=1000.0, miss_s=4.0, floor=0.0, curve=CURVE, seed=None):
    """Return rows of 10 kB and a dense layer, on a small fast type and a slow large one."""
    draw = random.Random(seed) if seed is not None else None
    by = draw.uniform if draw is not None else lambda low, high: (low + high) / 2
    cache = RowCache(hits=curve, miss_s=miss_s)
    rows = Layer(
        name="rows",
        kind="embedding",
        weight_bytes=8000,
        optimizer_bytes=2000,
        output_bytes=100,
        on={
            "gpu": LayerTime(
                compute_s=by(0.5, 1.5),
                comm_s=by(0.1, 0.3),
                compute_parallel=1.0,
                comm_parallel=by(0.0, 1.0),
                cache=cache,
            ),
            "cpu": LayerTime(compute_s=by(6, 10), comm_s=0.0, compute_parallel=0.9, comm_parallel=1.0),
        },
    )
    dense = Layer(
        name="dense",
        kind="fc",
        weight_bytes=100,
        on={
            "gpu": LayerTime(compute_s=by(0.5, 1.5), comm_s=0.0, compute_parallel=0.9, comm_parallel=1.0),
            "cpu": LayerTime(compute_s=by(20, 30), comm_s=0.0, compute_parallel=0.9, comm_parallel=1.0),
        },
    )
    return Problem(
        training=Training(samples=1000, batch=10, min_samples_per_s=floor),
        resources=(
            ResourceType(name="gpu", price_per_hour=by(2, 6), memory_bytes=memory_bytes, limit=4),
            ResourceType(name="cpu", price_per_hour=by(0.5, 1.5), limit=8),
        ),
        layers=(rows, dense),
    )


def on_gpu(units=1, **budgets):
    return [Stage(resource="gpu", first_layer=0, last_layer=1, units=units, row_budgets=budgets or None)]


def test_misses_cost_communication_that_units_share_and_memory_is_the_budget():
    problem = problem_of()
    # 200 bytes hit 0.8, so 4 s x 0.2 are fetched; 0.2 s of traffic were there before, half of them shared.
    one, two = (evaluate(problem, on_gpu(units, rows=200.0)) for units in (1, 2))
    memory = plan_memory(problem, on_gpu(2, rows=200.0))[0]

    assert one.stage_seconds[0] == pytest.approx(max(2.0, 0.2 + 0.8))
    assert two.stage_seconds[0] == pytest.approx(max(0.5 + 0.1 + 0.45, 0.1 + 0.05 + 0.4))
    assert memory.parameter_bytes == 200 + 100
    assert memory.activation_bytes == 50
    assert not one.violations
    assert evaluate(problem, on_gpu()).violations  # all 10 kB do not fit


def test_between_two_points_the_curve_is_straight():
    cache = RowCache(hits=CURVE, miss_s=1.0)

    assert [cache.hit_ratio(held) for held in (0, 50, 100, 150, 400, 9999)] == pytest.approx(
        [0.0, 0.25, 0.5, 0.65, 0.9, 0.9]
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_planner_finds_the_cheapest_of_all_budgets(seed):
    problem = problem_of(seed=seed, memory_bytes=random.Random(seed).choice([350.0, 700.0, 20_000.0]), floor=seed % 4)
    found = []
    for place in itertools.product(("gpu", "cpu"), repeat=2):
        for budget, units in itertools.product((None, 100.0, 200.0, 400.0), itertools.product(range(1, 9), repeat=2)):
            if place[0] != "gpu" and budget is not None:
                continue
            rows = None if budget is None else {"rows": budget}
            if place[0] == place[1]:
                stages = [Stage(resource=place[0], first_layer=0, last_layer=1, units=units[0], row_budgets=rows)]
            else:
                stages = [
                    Stage(resource=place[0], first_layer=0, last_layer=0, units=units[0], row_budgets=rows),
                    Stage(resource=place[1], first_layer=1, last_layer=1, units=units[1]),
                ]
            priced = evaluate(problem, stages)
            if not priced.violations:
                found.append(priced.cost)
    if not found:
        with pytest.raises(NoPlanError):
            cheapest_plan(problem, Demands(), clock=time.perf_counter)
        return
    for method in ("exact", "brute-force"):
        plan = plan_with(method, problem, Demands(time_limit_s=300.0), clock=time.perf_counter)
        assert plan.cost == pytest.approx(min(found), rel=1e-6)
        assert plan.optimal
        assert plan.problem == problem.digest()
        assert evaluate(problem, plan.stages).cost == pytest.approx(plan.cost)


def test_more_memory_is_given_to_rows_where_that_makes_it_faster():
    problem = problem_of(miss_s=40.0)
    small, large = (
        fastest_plan(
            msgspec.structs.replace(
                problem,
                resources=(msgspec.structs.replace(problem.resources[0], memory_bytes=room), problem.resources[1]),
            ),
            Demands(),
            clock=time.perf_counter,
        )
        for room in (420.0, 1000.0)
    )

    assert small.stages[0].row_budgets == {"rows": 200.0} or small.stages[0].resource == "cpu"
    assert large.stages[0].row_budgets == {"rows": 400.0}
    assert large.samples_per_s > small.samples_per_s


def test_where_all_rows_fit_they_are_kept():
    plan = cheapest_plan(problem_of(memory_bytes=1e6), Demands(), clock=time.perf_counter)

    assert all(stage.row_budgets is None for stage in plan.stages)
    assert len(pareto_plans(problem_of(), Demands(), points=3, clock=time.perf_counter)) >= 1


@pytest.mark.parametrize(
    "curve", [(), ((0.0, 0.5),), ((1.0, 1.5),), ((1.0, 0.5), (1.0, 0.6)), ((1.0, 0.5), (2.0, 0.4))]
)
def test_a_curve_that_cannot_be_is_refused(curve):
    with pytest.raises(SpecError):
        RowCache(hits=curve, miss_s=1.0)


def test_a_budget_for_a_layer_without_a_curve_is_refused():
    with pytest.raises(PlanError, match=r"no \[layer.on.gpu.cache\]"):
        evaluate(problem_of(), on_gpu(1, dense=100.0))
    with pytest.raises(PlanError, match="none of its layers"):
        evaluate(problem_of(), on_gpu(1, other=100.0))
