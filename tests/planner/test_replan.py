"""Planning again with what was measured."""

from __future__ import annotations

import time

import pytest

from dovetail.cost import measured_problem, measured_stage
from dovetail.planner.replan import better_plan, differences
from dovetail.spec import Problem, Stage
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages


def two_types(*, batch: int = 100, **training: float) -> Problem:
    """Return a problem whose first layer runs on `reader` alone and takes 1 s, its second on `tower` and takes 1 s."""
    return make_problem(
        resources=[make_resource("reader", kind="cpu", limit=5), make_resource("tower", kind="cpu", limit=5)],
        layers=[make_layer(name, on={on: make_layer_time()}) for name, on in (("read", "reader"), ("think", "tower"))],
        batch=batch,
        **training,
    )


def took(stages: tuple[Stage, ...], *seconds: float) -> list[Stage]:
    """Return stages that took so long for a batch of 100, each over all its workers."""
    return [
        measured_stage(stage, batch=100, workers=stage.units, samples=100, busy_s=each)
        for stage, each in zip(stages, seconds, strict=True)
    ]


def test_a_stage_differs_by_its_throughput():
    problem, stages = two_types(), make_stages(("reader", 0, 0, 1), ("tower", 1, 1, 1))

    # 1.3 s instead of 1: 23% less throughput. 0.9 s: 11% more.
    found = differences(problem, took(stages, 1.3, 0.9), above=0.2)

    assert [each.number for each in found] == [0]
    assert str(found[0]) == "stage 0 takes 1.30 times what was predicted"
    assert [each.number for each in differences(problem, took(stages, 1.3, 0.9), above=0.1)] == [0, 1]
    assert differences(problem, took(stages, 1.2, 1.0), above=0.2) == []


def test_workers_move_to_the_slow_stage_for_the_same_money():
    stages = make_stages(("reader", 0, 0, 2), ("tower", 1, 1, 2))
    problem = measured_problem(two_types(), took(stages, 1.0, 9.0))

    move = better_plan(problem, stages, clock=time.perf_counter)

    # One reader takes 1 s and three towers take 3 s, where two took 4.5.
    assert move is not None
    assert [(stage.resource, stage.units) for stage in move.plan.stages] == [("reader", 1), ("tower", 3)]
    assert move.before_samples_per_s == pytest.approx(100 / 4.5)
    assert move.after_samples_per_s == pytest.approx(100 / 3)
    assert move.saves_s(10_000, 20.0) == pytest.approx(10_000 / 20 * (1 - 3 / 4.5))


def test_a_run_whose_stages_are_even_stays():
    stages = make_stages(("reader", 0, 0, 2), ("tower", 1, 1, 2))
    problem = measured_problem(two_types(), took(stages, 5.0, 5.0))

    assert better_plan(problem, stages, clock=time.perf_counter) is None


def test_a_floor_that_is_missed_may_cost_more():
    stages = make_stages(("reader", 0, 0, 1), ("tower", 1, 1, 1))
    problem = measured_problem(two_types(min_samples_per_s=90.0), took(stages, 1.0, 4.0))

    move = better_plan(problem, stages, clock=time.perf_counter)

    assert move is not None
    assert [stage.units for stage in move.plan.stages] == [1, 4]  # a batch of 100 a second
